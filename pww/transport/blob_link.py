"""What an upload and a download share: where the store is, how patient to be, and who counts."""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pww.clock import Clock
from pww.transport.blob_peer import BlobPeer, BlobSite
from pww.transport.carrier import Meter, Transfers, Tuning
from pww.transport.retry import Retry, Uniform
from pww.transport.streams import Progress, Streams


@dataclass(frozen=True, slots=True)
class BlobLink:
    """The way to one blob store."""

    site: BlobSite
    tuning: Tuning
    clock: Clock
    stop: threading.Event
    random: Uniform
    meter: Meter

    def retry(self, stop: threading.Event) -> Retry:
        """A retry loop that gives up when `stop` is set."""
        return Retry(
            f"the blob store at {self.site.url}",
            first_s=self.tuning.retry_first_s,
            max_s=self.tuning.retry_max_s,
            deadline_s=self.tuning.deadline_s,
            clock=self.clock,
            stop=stop,
            random=self.random,
        )

    def peer(self) -> BlobPeer:
        """A connection; nothing is sent yet."""
        return BlobPeer(self.site, repeated=self.repeated)

    def repeated(self) -> None:
        """Counts a repeat that no retry loop made."""
        self.meter.add(Transfers(retries=1))

    def move(
        self,
        work: Callable[[BlobPeer, int], None],
        pieces: Iterable[int],
        progress: Progress,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """Moves pieces over parallel connections. Raises as `Streams.run`."""
        halt = threading.Event()
        retry = self.retry(halt)
        streams = Streams(
            work, connect=self.peer, retry=retry, halt=halt, progress=progress,
            tuning=self.tuning, clock=self.clock, stop=self.stop, meanwhile=meanwhile,
        )  # fmt: skip
        try:
            streams.run(pieces)
        finally:
            self.meter.add(Transfers(retries=retry.num_retries))
