"""The client of the central's blob store: uploads and downloads that survive what networks do.

Pieces of a few megabytes travel over several connections, each checked by itself and retried; the
other side, and a journal here, know which ones are there, so that a restart of either end costs
only what was under way. Memory: half a megabyte for each stream, whatever the object's size.
"""

import ssl
import threading
from pathlib import Path

from pww.clock import Clock
from pww.transport.blob_download import download
from pww.transport.blob_link import BlobLink
from pww.transport.blob_peer import Authorize, BlobSite
from pww.transport.blob_upload import upload
from pww.transport.carrier import Meter, Transfers, Tuning
from pww.transport.crew import Crew
from pww.transport.http_connection import split
from pww.transport.retry import Uniform
from pww.wire import PayloadInfo


class BlobCarrier:
    """A `Carrier` to the blob store at `url`."""

    def __init__(
        self,
        url: str,
        *,
        clock: Clock,
        stop: threading.Event,
        random: Uniform,
        tuning: Tuning | None = None,
        authorize: Authorize = lambda refused: "",
        tls: ssl.SSLContext | None = None,
        crew: Crew | None = None,
    ) -> None:
        """Nothing is sent yet.

        Args:
            url: like `https://central.example:29512`.
            clock: for rates, pauses and deadlines.
            stop: ends a transfer in the middle; it goes on where it was in the next call.
            random: for the jitter between tries.
            tuning: streams, timeouts and deadlines.
            authorize: gives the Authorization header, another one than was refused.
            tls: the bundle's; without it https trusts the machine's authorities.
            crew: other ranks that send their shares of an upload.

        Raises:
            CentralError: `url` is no http(s) URL.
        """
        tuning, url = tuning or Tuning(), url.rstrip("/")
        split(url)
        self._meter = Meter()
        site = BlobSite(url, authorize, tls, tuning.timeout_s)
        self._crew = crew
        self._link = BlobLink(site, tuning, clock, stop, random, self._meter)

    def put(self, path: Path, info: PayloadInfo) -> None:
        """Uploads `path`; see `Carrier.put`."""
        upload(self._link, path, info, crew=self._crew)

    def get(self, info: PayloadInfo, path: Path) -> None:
        """Downloads to `path`; see `Carrier.get`."""
        download(self._link, info, path)

    def transfers(self) -> Transfers:
        """What was moved so far."""
        return self._meter.read()

    def close(self) -> None:
        """Nothing stays open between two calls."""
