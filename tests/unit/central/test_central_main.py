"""`python -m pww.central audit`: which run, what it prints, and its exit code."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "programs"))

from lone_replica import SPACE, Lone, alone, config

from pww.central.__main__ import main
from pww.central.coordinator import Coordinator
from pww.central.ledger import Ledger
from pww.clock import ManualClock
from pww.config import paths


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A run to its end."""
    ranks = alone()
    lone = Lone(tmp_path_factory.mktemp("central") / "run", ranks)
    lone.train()
    ranks.close()
    return lone.run


@pytest.fixture
def project(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setattr(paths, "PROJECT", tmp_path)
    (tmp_path / "outputs").mkdir()
    return tmp_path


def begin(run: Path) -> Ledger:
    """A run that leased nothing yet, its ledger open."""
    (run / "central").mkdir(parents=True)
    ledger = Ledger(run / "central" / "ledger.sqlite")
    Coordinator(ledger, SPACE, darl=config().darl, aggregator_port=0, clock=ManualClock())
    return ledger


def test_a_good_run_is_ok(finished: Path, capsys) -> None:
    assert main(["audit", str(finished)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"run folder {finished}"
    assert lines[2] == "exactly once 11, lost 0, doubled 0"
    assert "local/a: 11 blocks in 6 deltas" in lines[4]
    assert lines[-1] == "ok"


def test_a_run_whose_books_differ_is_not(finished: Path, tmp_path: Path, capsys) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    ledger = Ledger(run / "central" / "ledger.sqlite")
    with ledger.transaction() as tx:
        tx.execute("UPDATE deltas SET outcome = 'rejected' WHERE round = 3")
    ledger.close()
    assert main(["audit", str(run)]) == 1
    text = capsys.readouterr().out
    assert "lost 2" in text
    assert "books differ" in text
    assert text.splitlines()[-1] == "NOT ok"


@pytest.mark.parametrize("name", ["nothing", "empty"])
def test_a_folder_without_a_ledger_is_a_sentence(project: Path, capsys, name: str) -> None:
    (project / "empty").mkdir()
    assert main(["audit", str(project / name)]) == 1
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert line.startswith(f"no ledger in {project / name}")
    assert line.endswith(": name the folder of a run that leased something")
    assert said.out == ""


def test_no_run_at_all_is_a_sentence(project: Path, capsys) -> None:
    assert main(["audit"]) == 1
    assert capsys.readouterr().err == (
        f"no run with a ledger in {project / 'outputs'}: name its folder, audit FOLDER\n"
    )


def test_help_is_help(capsys) -> None:
    assert main(["audit", "--help"]) == 0
    assert "audit [FOLDER]" in capsys.readouterr().out


def test_a_second_folder_is_not_ignored(finished: Path, capsys) -> None:
    assert main(["audit", str(finished), str(finished)]) == 2
    said = capsys.readouterr()
    assert "one folder" in said.err
    assert said.out == ""


def test_the_newest_run_is_the_one_written_last(project: Path, capsys) -> None:
    """A ledger that is open is written beside its file (WAL): its own time stands still."""
    old, new = (begin(project / "outputs" / name) for name in ("zz-old", "aa-new"))
    for number, name in enumerate(("zz-old", "aa-new")):
        file = project / "outputs" / name / "central" / "ledger.sqlite"
        for path in file.parent.iterdir():
            os.utime(path, (1e9 + number, 1e9 + number))
    (project / "outputs" / "no-run").mkdir()
    assert main(["audit"]) == 0
    assert "aa-new" in capsys.readouterr().out
    # the older one is written to again, while it is open
    file = project / "outputs" / "zz-old" / "central" / "ledger.sqlite"
    with old.transaction() as tx:
        tx.execute("UPDATE run SET created_wall = created_wall + 1")
    assert file.stat().st_mtime == 1e9
    assert main(["audit"]) == 0
    assert "zz-old" in capsys.readouterr().out
    old.close()
    new.close()


def test_a_run_that_goes_on_is_audited_as_it_stands(project: Path, capsys) -> None:
    ledger = begin(project / "outputs" / "run")
    assert main(["audit"]) == 0
    text = capsys.readouterr().out
    assert "leased 0, unleased 11" in text
    ledger.close()


def test_each_block_is_told_with_what_absorbed_it(finished: Path, project: Path, capsys) -> None:
    assert main(["audit", str(finished), "blocks=true"]) == 0
    lines = [x for x in capsys.readouterr().out.splitlines() if x.startswith("position")]
    assert [x.split()[1] for x in lines] == [str(p) for p in range(11)]
    assert sorted(int(x.split()[3]) for x in lines) == list(range(11))
    assert lines[0].endswith("local/a, lease 1, round 0 -> 1")
    assert lines[10].endswith("local/a, lease 6, round 5 -> 6")
    ledger = begin(project / "outputs" / "run")
    assert main(["audit", "blocks=true"]) == 0
    assert capsys.readouterr().out.count("unleased") >= 11
    ledger.close()
    assert main(["audit", "blocks=yes"]) == 2
    assert "blocks=true" in capsys.readouterr().err


def test_who_does_not_read_it_to_the_end_gets_no_traceback(finished: Path) -> None:
    command = f"{sys.executable} -m pww.central audit {finished} blocks=true"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{command} | true"], capture_output=True, text=True,
        timeout=60, check=False, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert done.stderr == ""
    assert done.returncode == 0


@pytest.mark.parametrize("overlap", [True, False])
def test_what_only_a_site_can_choose_is_said(overlap: bool, caplog) -> None:
    from pww.central.__main__ import _say_what_is_a_sites
    from pww.config.load import compose

    _say_what_is_a_sites(compose([f"diloco.overlap={str(overlap).lower()}"]))
    told = "diloco.overlap=true has no effect at the central: each site chooses for itself"
    assert (told in caplog.text) == overlap


def test_a_corpus_that_is_missing_is_told_before_torch_is_loaded_or_a_folder_made(
    tmp_path: Path,
) -> None:
    code = (
        "import sys; from pathlib import Path; from pww.config import paths;"
        "paths.PROJECT = Path(sys.argv[1]); from pww.central.__main__ import main;"
        "code = main(['data=tinyshakespeare', 'data.roots=[data]']);"
        "print(code, 'torch' in sys.modules, 'flwr' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "1 False False\n"
    assert "no file matches 'tinyshakespeare/input.txt'" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_mistyped_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["adit", "run"]) == 2
    assert "did you mean audit?" in capsys.readouterr().err
