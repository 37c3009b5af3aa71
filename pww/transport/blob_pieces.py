"""The pieces of an open file on their way to an upload, and which of them came to harm there."""

from collections.abc import Callable, Iterable

from pww.transport.blob_link import BlobLink
from pww.transport.blob_peer import BlobPeer, Damaged
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
        body = _piece(fd, info, number, piece_bytes)
        headers = {"content-type": "application/octet-stream"}
        place = f"{info.digest}/{info.size_bytes}/{number}"
        try:
            peer.ask("PUT", place, headers=headers, body=body)
        except Damaged as why:  # on the way; the pieces are small, and this one is here still
            raise TryAgain(str(why)) from why
        progress.add(body.size_bytes)

    link.move(send, pieces, progress, meanwhile)


def check_pieces(link: BlobLink, fd: int, info: PayloadInfo, *, piece_bytes: int) -> int:
    """How many pieces the store has otherwise than this file; they are missing there from now on.

    For an upload whose whole is wrong. Both sides read all of it, piece by piece.

    Raises:
        As `send_pieces`.
    """
    progress = Progress(
        f"comparing {info.digest[:12]}…", total_bytes=info.size_bytes, clock=link.clock
    )
    wrong: set[int] = set()

    def check(peer: BlobPeer, number: int) -> None:
        part = _piece(fd, info, number, piece_bytes)
        try:
            peer.ask("POST", f"{info.digest}/{info.size_bytes}/{number}/{part.crc32c():08x}")
        except Damaged:
            wrong.add(number)
        progress.add(part.size_bytes)

    link.move(check, range(num_pieces(info, piece_bytes)), progress)
    progress.end()
    return len(wrong)


def num_pieces(info: PayloadInfo, piece_bytes: int) -> int:
    """How many pieces an object comes in; the last may be short."""
    return -(-info.size_bytes // piece_bytes)


def _piece(fd: int, info: PayloadInfo, number: int, piece_bytes: int) -> FilePart:
    start = number * piece_bytes
    return FilePart(fd, start, min(start + piece_bytes, info.size_bytes))
