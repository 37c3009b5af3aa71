"""Which checkpoint of a run goes with a round of theta."""

from pathlib import Path

from pww.errors import CheckpointError
from pww.replica import entry as entries
from pww.replica.together_disk import inner_of


def inner_with(run: Path, *, round_: int) -> Path:
    """The inner state, of the first replica, that was saved when theta was at that round.

    A phase that is not decided yet goes with no theta: its round may or may not be closed.

    Raises:
        CheckpointError: none is kept, or one that may be it cannot be read.
    """
    for folder in sorted((run / "checkpoints").glob("phase-??????"), reverse=True):
        entry = entries.read(folder)
        if entry.verdict is None:
            continue
        if entry.offer.base_round + (entry.verdict.outcome == "merged") == round_:
            one = inner_of(folder, 0)
            return one if one.is_dir() else entry.inner
    raise CheckpointError(
        f"no checkpoint in {run / 'checkpoints'} goes with theta of round {round_}: there is one "
        "after the next phase of this run"
    )
