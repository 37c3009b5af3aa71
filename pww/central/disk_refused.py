"""What a person is told when the central's disk refused: nothing is lost, make room."""

from pww.errors import StateError


def disk_refused(what: str, why: OSError) -> StateError:
    """The fault to raise where `what` could not be written."""
    return StateError(
        f"{what} could not be written: {why}. Nothing changed and what was received is kept: make "
        "room on that disk and start the central again"
    )
