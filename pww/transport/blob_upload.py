"""An upload: asks what is there, sends the pieces that are not, and has the whole checked.

Every step may be repeated: after a lost reply, a restart of either side, or in a new process.
"""

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from pww.errors import CentralError, PayloadError, Stopped
from pww.transport.blob_crew import share_out
from pww.transport.blob_link import BlobLink
from pww.transport.blob_peer import BeginAgain, BlobPeer, Busy, Damaged
from pww.transport.blob_pieces import check_pieces, num_pieces, send_pieces
from pww.transport.blob_wire import BlobState
from pww.transport.carrier import Transfers, must_fit
from pww.transport.crew import Crew
from pww.transport.digest import file_digest
from pww.transport.retry import Retry
from pww.transport.streams import Progress
from pww.wire import PayloadInfo

log = logging.getLogger(__name__)
MAX_BEGINNINGS = 8
"""A store that loses an upload so often will lose it again."""
MAX_DAMAGES = 5
"""An upload that arrives damaged so often is not damaged by chance."""
GIVE_UP_S = 10.0
"""So long is tried to have what is given up forgotten; nobody who fails already waits for more."""


def upload(link: BlobLink, path: Path, info: PayloadInfo, *, crew: Crew | None = None) -> None:
    """Sends `path`, a share of it by each rank of `crew`. Raises as `Carrier.put`."""
    must_fit(path, info)
    peer, retry = link.peer(), link.retry(link.stop)
    progress = Progress(
        f"uploading {info.digest[:12]}…", total_bytes=info.size_bytes, clock=link.clock
    )
    try:
        with path.open("rb") as file:
            _Upload(link, peer, retry, path, file.fileno(), info, progress, crew).run()
    finally:
        peer.drop()
        link.meter.add(
            Transfers(
                num_up=1, bytes_up=progress.moved_bytes, retries=retry.num_retries,
                seconds_up=progress.end(),
            )
        )  # fmt: skip


class _Upload:
    """One upload, of an open file."""

    def __init__(self, link: BlobLink, peer: BlobPeer, retry: Retry, path: Path, fd: int,
                 info: PayloadInfo, progress: Progress, crew: Crew | None) -> None:  # fmt: skip
        self._link, self._peer, self._retry, self._crew = link, peer, retry, crew
        self._path, self._fd, self._info, self._progress = path, fd, info, progress
        self._url = f"{info.digest}/{info.size_bytes}"

    def run(self) -> None:
        damages = 0
        for beginning in range(MAX_BEGINNINGS):
            if beginning:
                self._retry.count()
            state = self._begin()
            if state.complete:
                return
            try:
                if self._crew is not None and not beginning:  # who failed once is not asked again
                    state = share_out(
                        self._link, self._crew, self._path, self._info, state,
                        send=partial(self._send_pieces, state=state), ask=self._begin,
                    )  # fmt: skip
                self._send(state)
                try:
                    self._commit()
                except Damaged as why:
                    damages += 1
                    self._mend(state, str(why), times=damages)
                else:
                    return
            except BeginAgain as why:
                log.info("the upload of %s… begins again: %s", self._info.digest[:12], why)
        raise CentralError(
            f"the central lost the upload of {self._info.digest[:12]}… {MAX_BEGINNINGS} times: see "
            "its log"
        )

    def _mend(self, state: BlobState, why: str, *, times: int) -> None:
        """Has the store miss the pieces that came to harm, of a whole that is wrong.

        Raises:
            PayloadError: nothing came to harm, so the file is wrong; or it was so too often.
            BeginAgain: the store lost the upload.
        """
        wrong = check_pieces(self._link, self._fd, self._info, piece_bytes=state.piece_bytes)
        right = wrong > 0 or self._is_announced()
        if right and times < MAX_DAMAGES:
            of = num_pieces(self._info, state.piece_bytes)
            log.warning("%d of %d pieces came damaged and go once more: %s", wrong, of, why)
            return
        self._give_up()
        raise PayloadError(
            f"{why}; so it was {times} times: something on the way changes what is sent"
            if right
            else f"{why}; they are those of the file here, which is not what it is announced as: "
            "write it again"
        )

    def _is_announced(self) -> bool:
        """Whether the file here is what it is announced as: the answer to a check may be lost."""
        with self._path.open("rb") as file:
            return file_digest(file) == self._info.digest

    def _give_up(self) -> None:
        """Has the store forget the upload; if it does not hear of it, it will by itself one day."""
        try:
            self._retry.run(
                lambda: self._peer.ask("DELETE", self._url), what="an upload that is given up",
                deadline_s=GIVE_UP_S,
            )  # fmt: skip
        except CentralError as fault:  # a proxy that knows no DELETE, say: why it ends is told
            log.warning("%s… stays at the central for now: %s", self._info.digest[:12], fault)

    def _begin(self) -> BlobState:
        """What the store has, checked."""
        content = self._retry.run(
            lambda: self._peer.ask("POST", self._url), what="the beginning of an upload"
        )
        try:
            state = BlobState.model_validate_json(content)
        except ValidationError as fault:
            raise self._peer.stranger("an unreadable state of an upload") from fault
        of = num_pieces(self._info, state.piece_bytes)
        if state.missing and state.missing[-1][1] > of:
            raise self._peer.stranger("missing pieces that the object does not have")
        return state

    def _send(self, state: BlobState) -> None:
        self._send_pieces([n for start, stop in state.missing for n in range(start, stop)], state)

    def _send_pieces(self, pieces: Sequence[int], state: BlobState) -> None:
        size, whole = state.piece_bytes, self._info.size_bytes
        self._progress.rest(sum(min((n + 1) * size, whole) - n * size for n in pieces))
        send_pieces(self._link, self._fd, self._info, pieces, self._progress, piece_bytes=size)

    def _commit(self) -> None:
        """Has the store check the whole, which may take it a while."""
        what, told = "the end of an upload", False
        while True:
            try:
                self._retry.run(lambda: self._peer.ask("POST", f"{self._url}/commit"), what=what)
            except Busy as busy:
                if not told:
                    log.info("the central checks the whole of %s…", self._info.digest[:12])
                    told = True
                if self._link.clock.wait(self._link.stop, max(busy.after_s, 0.1)):
                    raise Stopped(f"stopped at {what}; it goes on where it was") from None
            else:
                return
