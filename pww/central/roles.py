"""Which services of a central a process runs, and the locks that keep each of them single.

The books' owner holds the run folder, as the whole central does; the merge has a lock of its own
beside the ledger, which the whole central holds too. So either is there once, and nobody replays a
run that one of them still writes.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pww.config.schema import Role
from pww.folder import owned

ALL: tuple[Role, ...] = ("coordinator", "aggregator")


@contextmanager
def held(folder: Path, roles: Iterable[Role], *, remedy: str = "") -> Iterator[None]:
    """Holds these roles of the run in `folder`; the kernel lets go of them however we end.

    Raises:
        InUse: another process has one of them; `remedy` says what to do, "": stop that one.
        StateError: the folder cannot be used.
    """
    wanted = frozenset(roles)
    stop_it = "serves it; stop that one, or set run.name"
    with ExitStack() as stack:
        if "coordinator" in wanted:
            told = remedy or f"another central (or its coordinator) {stop_it}"
            stack.enter_context(owned(folder, remedy=told))
        if "aggregator" in wanted:
            told = remedy or f"another central (or its aggregator) {stop_it}"
            stack.enter_context(owned(folder / "central", remedy=told, name="aggregator.lock"))
        yield
