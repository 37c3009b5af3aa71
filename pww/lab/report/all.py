"""The reports of all studies, and the sources' figures beside ours in one table."""

from pathlib import Path

from pww.errors import LabError
from pww.folder import write_durably
from pww.lab.report.agreement import Agreement
from pww.lab.report.tables import Table
from pww.lab.report.write import write_report
from pww.lab.studies.catalogue import RECIPES

AGREEMENT = "agreement"


def write_all(root: Path) -> tuple[list[str], Path]:
    """Rebuilds every report below `root`, and `agreement.md` and `.csv` there.

    Returns:
        A sentence for each study with a fault, and the table of all that the sources found.

    Raises:
        LabError: there is no study at all.
    """
    folders = sorted(p for p in root.glob("[!.]*") if p.is_dir()) if root.is_dir() else []
    if not folders:
        raise LabError(f"no study in {root} yet; python -m pww.lab study lists those to run")
    faults: list[str] = []
    rows: list[tuple[str, Agreement]] = []
    for folder in folders:
        try:
            report = write_report(folder, against="", recipe=RECIPES.get(folder.name))
        except LabError as fault:
            faults.append(f"{folder.name}: {fault}")
            continue
        faults += [f"{folder.name}: {fault}" for fault in report.faults]
        rows += [(folder.name, one) for one in report.agreements]
    table = _together(rows)
    waiting = [name for name in RECIPES if name not in {folder.name for folder in folders}]
    text = f"# The sources' figures and ours\n\n{table.markdown()}"
    if waiting:
        text += f"\nNot run: {', '.join(waiting)} (`python -m pww.lab study NAME`).\n"
    path = root / f"{AGREEMENT}.md"
    write_durably(path, text.encode())
    write_durably(path.with_suffix(".csv"), table.csv().encode())
    return faults, path


def _together(rows: list[tuple[str, Agreement]]) -> Table:
    return Table(
        ("study", "finding", "the source", "ours", "compared", "agrees", "why"),
        tuple(
            (
                study,
                one.expected.what,
                one.expected.source,
                one.ours,
                one.expected.basis,
                one.agrees,
                one.why,
            )
            for study, one in rows
        ),
    )
