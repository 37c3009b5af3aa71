"""What a person is told when the central's disk refused: nothing is lost, make room."""

from pww.errors import StateError


def disk_refused(what: str, why: OSError, *, who: str = "the central") -> StateError:
    """The fault to raise where `what` could not be written; `who` is to be started again."""
    return StateError(
        f"{what} could not be written: {why}. Nothing changed and what was received is kept: make "
        f"room on that disk and start {who} again"
    )
