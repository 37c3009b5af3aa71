"""`python -m pww.smoke.local RANKS RUN [json]`: the ranks of a smoke test on this machine.

Torch's launcher ends all ranks when one has failed, and it alone can say of one that was killed
which it was.
"""

import sys
from pathlib import Path

from pww.launcher.elastic import launch
from pww.smoke.book import DIED, FAULTS, note_fault

MODULE = "pww.smoke.rank"


def main(argv: list[str]) -> int:
    """The exit code of the first rank that failed, or 0."""
    ranks, run = int(argv[0]), Path(argv[1])

    def failed(rank: int, code: int) -> None:
        if not (run / FAULTS / str(rank)).exists():
            note_fault(run, DIED, f"rank {rank} ended with exit code {code} and said nothing")

    return launch(ranks, [sys.executable, "-m", MODULE, *argv[1:]], failed=failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
