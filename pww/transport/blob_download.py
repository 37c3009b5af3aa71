"""A download: ranges over several connections, each answer checked, the whole checked at the end.

No answer is trusted: its status, range, length, entity tag and CRC-32C must be those of the piece
that was asked for, or nothing of it is used. (A store that tells no CRC leaves it to the digest.)
"""

import http.client
import logging
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import NoReturn

import google_crc32c
import numpy as np

from pww.errors import CentralError, PayloadError
from pww.transport.blob_link import BlobLink
from pww.transport.blob_peer import BlobPeer
from pww.transport.blob_range import ask_range, read_content_range
from pww.transport.blob_wire import ABSENT, CRC, etag
from pww.transport.carrier import Transfers
from pww.transport.http_connection import Faults
from pww.transport.memory import thread_buffer
from pww.transport.piece_file import PieceFile, WrongDigest
from pww.transport.retry import TryAgain
from pww.transport.streams import Progress
from pww.wire import PayloadInfo

log = logging.getLogger(__name__)
BITE = 512 << 10
MAX_DAMAGES = 5
"""A piece that comes damaged so often is not damaged by chance."""


def download(link: BlobLink, info: PayloadInfo, path: Path) -> None:
    """Raises as `Carrier.get`."""
    progress = Progress(
        f"downloading {info.digest[:12]}…", total_bytes=info.size_bytes, clock=link.clock
    )
    try:
        try:
            _once(link, info, path, progress)
        except WrongDigest as why:
            log.warning("%s: all of it is downloaded anew", why)
            link.repeated()
            try:
                _once(link, info, path, progress)
            except WrongDigest as again:
                raise PayloadError(
                    f"{again}; so it was twice: the object is damaged at {link.site.url}, or "
                    "something on the way changes it"
                ) from again
    finally:
        link.meter.add(
            Transfers(num_down=1, bytes_down=progress.moved_bytes, seconds_down=progress.end())
        )


def _once(link: BlobLink, info: PayloadInfo, path: Path, progress: Progress) -> None:
    file = PieceFile(
        path, digest=info.digest, size_bytes=info.size_bytes, piece_bytes=link.tuning.piece_bytes
    )
    damages = _Damages(link.site.url)
    try:
        pieces = file.missing()
        spans = [file.span(number) for number in pieces]
        progress.rest(sum(stop - start for start, stop in spans))
        fetch = partial(_fetch_piece, file, info, progress, damages)
        link.move(fetch, pieces, progress, file.advance)
        file.publish(path)
    finally:
        file.close()


class _Damages:
    """How often each piece came damaged. Thread-safe."""

    def __init__(self, url: str) -> None:
        self._url, self._lock, self._seen = url, threading.Lock(), Counter[int]()

    def note(self, number: int, what: str) -> NoReturn:
        """Has the piece asked for again.

        Raises:
            TryAgain: which does.
            PayloadError: it was so `MAX_DAMAGES` times.
        """
        with self._lock:
            self._seen[number] += 1
            times = self._seen[number]
        if times < MAX_DAMAGES:
            raise TryAgain(f"{what}: damaged on the way")
        raise PayloadError(
            f"{what}; so it was {times} times: the object is damaged at {self._url}, or something "
            "on the way changes it"
        )


def _fetch_piece(
    file: PieceFile, info: PayloadInfo, progress: Progress, damages: _Damages, peer: BlobPeer,
    number: int,
) -> None:  # fmt: skip
    start, stop = file.span(number)
    headers = {"range": ask_range(start, stop), "if-range": etag(info.digest)}
    reply = peer.open("GET", info.digest, headers=headers)
    if reply.status not in (200, 206):
        fault = peer.judged(reply, peer.small(reply))
        # theta of a round that is over, say: the next invitation names another
        raise CentralError(str(fault)) if reply.status == ABSENT else fault
    wrong = _wrong(reply, info, start, stop)
    if wrong:
        peer.drop()
        raise TryAgain(f"asked for bytes {start} to {stop - 1}, but {wrong}")
    peer.expect(stop - start)
    told, crc = reply.headers.get(CRC), 0
    for at in range(start, stop, BITE):
        bite = thread_buffer(min(BITE, stop - at))
        filled = 0
        while filled < len(bite):
            try:
                got = reply.readinto(bite[filled:])
            except Faults as fault:
                raise peer.broken(fault) from fault
            if got == 0:
                peer.drop()
                raise TryAgain(f"bytes {start} to {stop - 1} ended at {at + filled - 1}")
            filled += got
            peer.came(got)
        crc = google_crc32c.extend(crc, np.frombuffer(bite, dtype=np.uint8))
        file.write(bite, at)
    if told is not None and told != f"{crc:08x}":
        damages.note(number, f"bytes {start} to {stop - 1} came with CRC-32C {crc:08x}, not {told}")
    file.finish(number)
    progress.add(stop - start)


def _wrong(reply: http.client.HTTPResponse, info: PayloadInfo, start: int, stop: int) -> str:
    """Why an answer is not the piece that was asked for; "" if it may be."""
    told = reply.headers
    if reply.status != 206:
        return "the answer is the whole object (HTTP 200)"
    if read_content_range(told.get("content-range", "")) != (start, stop, info.size_bytes):
        return f"the answer has Content-Range {told.get('content-range', 'none')[:60]!r}"
    if told.get("etag") != etag(info.digest):
        return f"the answer is of another object (ETag {told.get('etag', 'none')[:72]})"
    if reply.chunked or reply.length != stop - start:
        return f"the answer has Content-Length {told.get('content-length', 'none')[:20]}"
    if told.get("content-encoding", "identity") != "identity":
        return f"the answer has Content-Encoding {told['content-encoding'][:20]}"
    return ""
