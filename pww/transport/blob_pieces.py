"""The pieces of an open file on their way to an upload, each with its CRC-32C."""

from collections.abc import Callable, Iterable

from pww.transport.blob_link import BlobLink
from pww.transport.blob_peer import BlobPeer, Damaged
from pww.transport.blob_wire import CRC
from pww.transport.file_part import FilePart
from pww.transport.retry import TryAgain
from pww.transport.streams import Progress
from pww.wire import PayloadInfo


def send_pieces(
    link: BlobLink,
    fd: int,
    info: PayloadInfo,
    pieces: Iterable[int],
    progress: Progress,
    *,
    piece_bytes: int,
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """Returns when every piece is at the store, which has the upload already.

    Raises:
        Stopped: the stop was asked for.
        BeginAgain: the store lost the upload, or somebody else sends one of the pieces.
        CentralError: the store refused one, or gave no answer within the deadline.
        PayloadError: the file has become shorter.
    """

    def send(peer: BlobPeer, number: int) -> None:
        start = number * piece_bytes
        body = FilePart(fd, start, min(start + piece_bytes, info.size_bytes))
        # read twice: the header comes before the bytes
        headers = {CRC: f"{body.crc32c():08x}", "content-type": "application/octet-stream"}
        place = f"{info.digest}/{info.size_bytes}/{number}"
        try:
            peer.ask("PUT", place, headers=headers, body=body)
        except Damaged as why:  # on the way; the pieces are small, and this one is here still
            raise TryAgain(str(why)) from why
        progress.add(body.size_bytes)

    link.move(send, pieces, progress, meanwhile)
