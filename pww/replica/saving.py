"""A phase that becomes durable beside the next one: a thread of each rank writes what it copied.

Its folder is not there, and nothing of it leaves, before every rank has written its part: a crash
in between leaves the phase before as the newest, and this one's blocks are leased again.
"""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

from pww.errors import CheckpointError
from pww.replica.entry import cannot_write
from pww.trainer.api import InnerCopy
from pww.trainer.ranks import Ranks

WAIT_S = 10.0


class Saving:
    """One phase on its way to the disk; built on all ranks at once."""

    def __init__(
        self,
        copy: InnerCopy,
        part: Path,
        final: Path,
        *,
        ranks: Ranks,
        publish: Callable[[], None],
    ) -> None:
        """Begins to write.

        Args:
            copy: what this rank writes into `part`, which is there.
            part: the phase's folder until it is whole.
            final: its name afterwards.
            ranks: for this thread alone: see `Ranks.beside`.
            publish: rank 0 calls it once every rank has written.
        """
        self._part, self._final = part, final
        self._ranks, self._publish = ranks, publish
        self._over = threading.Event()
        self._fault: BaseException | None = None
        threading.Thread(target=self._run, args=(copy,), daemon=True, name="save").start()

    @property
    def failed(self) -> bool:
        """Whether it will never be durable."""
        return self._over.is_set() and self._fault is not None

    def ended(self) -> None:
        """Waits for the end of it, whatever that is: disks and ranks have limits of their own."""
        while not self._over.wait(WAIT_S):
            pass

    def wait(self) -> None:
        """Returns when it is durable.

        Raises:
            CheckpointError: it never will be (disk full, say); the one before it is intact.
        """
        self.ended()
        if self._fault is not None:
            raise self._fault

    def _run(self, copy: InnerCopy) -> None:
        try:
            fault: CheckpointError | None = None
            try:
                copy.write(self._part / "inner")
            except CheckpointError as why:
                fault = cannot_write(self._final, why)
            del copy  # its memory is needed no longer than this
            self._ranks.agree_on_fault(fault)
            if self._ranks.rank == 0:
                self._publish()
        except BaseException as fault:
            self._fault = fault
            if self._ranks.rank == 0:
                shutil.rmtree(self._part, ignore_errors=True)
        finally:
            self._over.set()
