"""The commands of the lab that train nothing: `predict`, `report` and `study`.

    python -m pww.lab predict study=NAME claim="…" cell=codec=topk,H=16 against=H=16 \\
        quantity=loss_ratio low=0.99 high=1.01
    python -m pww.lab report study=NAME [against=CELL]     of one study; without study=, of all
    python -m pww.lab study [NAME] [dry=true] [key=value …]   runs one that comes with the lab, here
        or with site=… in that site's queue
"""

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from pww.clock import Clock, SystemClock
from pww.config import paths
from pww.config.faults import did_you_mean
from pww.errors import ConfigError, PwwError
from pww.lab.cells import full_name
from pww.lab.log import predict
from pww.lab.predictions import NOTHING, QUANTITIES, Prediction
from pww.lab.studies.catalogue import RECIPES

ROOT = "outputs/lab"
"""Studies are below it unless `root=` says otherwise."""
SAYS = "python -m pww.lab"


def start(argv: Sequence[str], *, clock: Clock | None = None) -> int:
    """Runs one of `COMMANDS`, whose name is the first word; the exit code."""
    command, words = COMMANDS[argv[0]], argv[1:]
    if any(word in ("-h", "--help") for word in words):
        print(__doc__)
        return 0
    try:
        return command(words, clock or SystemClock())
    except PwwError as fault:
        print(fault, file=sys.stderr)
        return fault.exit_code


def _predict(words: Sequence[str], clock: Clock) -> int:
    keys = ("study", "claim", "cell", "against", "quantity", "low", "high", "root")
    given = _given(words, keys, needed=("study", "claim", "cell", "quantity", "low", "high"))
    if given["quantity"] not in QUANTITIES:
        allowed = ", ".join(QUANTITIES)
        guess = did_you_mean(given["quantity"], QUANTITIES)
        raise ConfigError([f"quantity={given['quantity']}: is one of {allowed}{guess}"])
    against = given.get("against", NOTHING)
    prediction = Prediction(
        claim=given["claim"],
        cell=full_name(given["cell"]),
        against=against if against == NOTHING else full_name(against),
        quantity=given["quantity"],
        low=_number(given, "low"),
        high=_number(given, "high"),
        at=datetime.fromtimestamp(clock.wall()).isoformat(timespec="seconds"),
    )
    folder = _folder(given)
    predict(folder, prediction)
    print(f"predicted in {paths.shown(folder / 'log.jsonl')}: {prediction.claim}")
    return 0


def _report(words: Sequence[str], clock: Clock) -> int:
    from pww.lab.report.all import write_all
    from pww.lab.report.write import FOLDER, write_report

    given = _given(words, ("study", "against", "root"), needed=())
    if "study" not in given:
        if "against" in given:
            raise ConfigError(["against= is a cell of one study: give study=NAME too"])
        root = _root(given)
        faults, path = write_all(root)
        print(f"reports of all studies in {paths.shown(root)}; figures of the sources and ours:")
        print(path.read_text())
        return _told(faults)
    folder = _folder(given)
    report = write_report(
        folder, against=given.get("against", ""), recipe=RECIPES.get(given["study"])
    )
    print(report.text)
    print(f"written: {paths.shown(folder / FOLDER)}")
    return _told(report.faults)


def _study(words: Sequence[str], clock: Clock) -> int:
    if not words:
        for one in RECIPES.values():
            print(f"{one.name:18} {one.about}")
        return 0
    name, *more = words
    if name not in RECIPES:
        names = list(RECIPES)
        raise ConfigError(
            [f"study {name}: is one of {', '.join(names)}{did_you_mean(name, names)}"]
        )
    recipe, dry = RECIPES[name], "dry=true" in more
    more = [word for word in more if word != "dry=true"]
    for line in recipe.lines:
        command = recipe.command(line, tuple(more))
        print(f"{SAYS} {_quoted(command)}", flush=True)
        if dry:
            continue
        code = _run(command)
        if code:
            print(
                f"ended with {code}; what is finished stays, and the same command goes on: {SAYS} "
                f"study {name}",
                file=sys.stderr,
            )
            return code
    if _is_queued(more) and not dry:
        print(f"when the jobs have ended: {SAYS} report study={name}", file=sys.stderr)
        return 0
    return 0 if dry else start(["report", f"study={name}", *_root_words(more)], clock=clock)


def _is_queued(more: Sequence[str]) -> bool:
    """Whether the lines have only gone to a queue when they end."""
    sites = [word for word in more if word.startswith("site=")]
    waits = [word.lower() for word in more if word.startswith("launcher.wait=")]
    return sites[-1:] not in ([], ["site=local"]) and waits[-1:] != ["launcher.wait=true"]


def _run(words: Sequence[str]) -> int:
    """One command line of the lab, as a person would start it."""
    try:
        done = subprocess.run([sys.executable, "-m", "pww.lab", *words], check=False)
    except KeyboardInterrupt:
        return 130
    return done.returncode if done.returncode >= 0 else 128 - done.returncode


def _told(faults: Sequence[str]) -> int:
    """1 if there is anything that a person should look at."""
    for fault in faults:
        print(fault, file=sys.stderr)
    return int(bool(faults))


def _given(
    words: Sequence[str], allowed: Sequence[str], *, needed: Sequence[str]
) -> dict[str, str]:
    """The words by key.

    Raises:
        ConfigError: every word that is not of those keys, or is missing.
    """
    given: dict[str, str] = {}
    faults: list[str] = []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            faults.append(f"{word}: write key=value; keys are {', '.join(allowed)}")
        elif key not in allowed:
            guess = did_you_mean(key, allowed)
            faults.append(f"{word}: keys are {', '.join(allowed)}{guess}")
        elif key in given:
            faults.append(f"{word}: {key} is given twice")
        else:
            given[key] = value
    faults += [f"{key}= is missing" for key in needed if key not in given]
    study = given.get("study", "x")
    if not study or study in (".", "..") or "/" in study or study != study.strip():
        faults.append(f"study={study}: is the name of one folder")
    if faults:
        raise ConfigError(faults)
    return given


def _number(given: Mapping[str, str], key: str) -> float:
    try:
        return float(given[key])
    except ValueError:
        raise ConfigError(
            [f"{key}={given[key]}: is no number (-inf and inf are allowed)"]
        ) from None


def _root(given: Mapping[str, str]) -> Path:
    return paths.PROJECT / given.get("root", ROOT)


def _folder(given: Mapping[str, str]) -> Path:
    return _root(given) / given["study"]


def _root_words(more: Sequence[str]) -> list[str]:
    """Where a study was told to put its runs, for its report."""
    return [f"root={word.partition('=')[2]}" for word in more if word.startswith("lab.root=")][-1:]


def _quoted(words: Sequence[str]) -> str:
    import shlex

    return " ".join(shlex.quote(word) for word in words)


COMMANDS: Mapping[str, Callable[[Sequence[str], Clock], int]] = {
    "predict": _predict,
    "report": _report,
    "study": _study,
}
