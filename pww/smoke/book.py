"""What a smoke test found: a line a check, what each rank died of, and the one verdict of all.

    RUN/checks.jsonl    a JSON object a check, as they were made; checks.txt: the same to read
    RUN/faults/RANK     one line: why a rank could not go on
    RUN/verdict         PASS or FAIL with the reasons, once rank 0 had seen everything

No verdict is a verdict: ranks that hang or die leave none, and `concluded` says what they left.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from pww.errors import StateError
from pww.folder import write_durably

CHECKS, TEXT, FAULTS, VERDICT = "checks.jsonl", "checks.txt", "faults", "verdict"
PASS, FAIL = "PASS", "FAIL"
DIED = "died"
"""The fault of a rank that was killed, as its launcher tells it."""
SHOWN = 3
MARKS = {"right": "  ", "shown": "  ", "unchecked": "? ", "wrong": "! "}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    what: str
    state: Literal["right", "shown", "unchecked", "wrong"]
    told: str
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """For people."""
        return f"{MARKS[self.state]}{self.what:<11} {self.told}"


class Book:
    """Rank 0's: prints every check as it is made, and writes it down."""

    def __init__(self, run: Path, *, as_json: bool) -> None:
        self._run, self._as_json = run, as_json
        self._checks: list[Check] = []

    def add(self, checks: Iterable[Check]) -> None:
        """Takes in what is seen.

        Raises:
            StateError: the run's folder cannot be written.
        """
        for check in checks:
            self._checks.append(check)
            text = as_json(check) if self._as_json else check.line
            print(text, flush=True)
            try:
                with (self._run / CHECKS).open("a") as file:
                    file.write(f"{as_json(check)}\n")
                with (self._run / TEXT).open("a") as file:
                    file.write(f"{check.line}\n")
            except OSError as why:
                raise StateError(
                    f"cannot write {self._run / CHECKS}: {why}; make room, or give run.root=…"
                ) from why

    def close(self) -> bool:
        """Writes the verdict, and whether it is PASS. Every rank has to be well until here."""
        wrong = [check for check in self._checks if check.state == "wrong"]
        text = f"{FAIL}: {'; '.join(f'{c.what}: {c.told}' for c in wrong)}" if wrong else PASS
        write_durably(self._run / VERDICT, f"{text}\n".encode())
        return not wrong


def as_json(check: Check) -> str:
    """A check on one line, for programs."""
    return json.dumps(asdict(check))


def note_fault(run: Path, name: str, text: str) -> None:
    """Leaves behind why a rank could not go on; if that cannot be written either, says it.

    Only the first fault of each: the next ones follow from it.
    """
    line = " ".join(text.split())
    try:
        (run / FAULTS).mkdir(exist_ok=True)
        with (run / FAULTS / name).open("x") as file:
            file.write(f"{line}\n")
    except FileExistsError:
        pass
    except OSError as why:
        print(f"{line} ({why})", file=sys.stderr)


def concluded(run: Path, code: int) -> str:
    """The one last line, given the exit code of the ranks; and it is in RUN/verdict afterwards."""
    text = _written(run)
    if text and (code == 0 or text != PASS):
        return text
    causes = _causes(run)
    rest = f"; {len(causes) - SHOWN} more in {run / FAULTS}" if len(causes) > SHOWN else ""
    why = "; ".join(causes[:SHOWN]) or f"the ranks ended with exit code {code} and said nothing"
    text = f"{FAIL}: {why}{rest}"
    try:
        write_durably(run / VERDICT, f"{text}\n".encode())
    except OSError as why_not:
        print(f"cannot write {run / VERDICT}: {why_not}", file=sys.stderr)
    return text


def said(text: str, *, as_json: bool) -> int:
    """Prints the last line; the exit code to match."""
    passed = text == PASS
    reason = text.removeprefix(FAIL).removeprefix(": ") if not passed else ""
    print(
        json.dumps({"verdict": PASS if passed else FAIL, "reason": reason}) if as_json else text,
        flush=True,
    )
    return 0 if passed else 1


def _written(run: Path) -> str:
    try:
        return (run / VERDICT).read_text().strip()
    except (OSError, UnicodeError):
        return ""


def _causes(run: Path) -> Sequence[str]:
    """What the ranks left, what was first in front: the others may only have seen it happen."""
    found = []
    for path in (run / FAULTS).glob("*"):
        try:
            found.append((path.name != DIED, path.stat().st_mtime_ns, path.read_text().strip()))
        except (OSError, UnicodeError):
            continue
    return [text for _, _, text in sorted(found)]
