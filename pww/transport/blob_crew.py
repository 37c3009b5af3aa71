"""An upload by several ranks: the missing pieces are shared out, and sent by all of them at once.

`share_out` is the asking side, `carry` the asked one. What then is still missing at the store, for
whatever reason, the asking side sends by itself: `blob_upload` goes on as if nothing had been.
"""

import logging
import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pww.clock import Clock
from pww.errors import PwwError, Stopped
from pww.transport.blob_link import BlobLink
from pww.transport.blob_peer import BeginAgain, BlobSite
from pww.transport.blob_pieces import send_pieces
from pww.transport.blob_wire import BlobState
from pww.transport.carrier import Meter, Transfers, Tuning, must_fit
from pww.transport.crew import Asked, Crew, Errand, Report
from pww.transport.retry import Uniform
from pww.transport.streams import STOPPED, Progress
from pww.transport.tls import client_context
from pww.wire import PayloadInfo

log = logging.getLogger(__name__)
WORTH_PIECES = 8
"""With fewer for each rank, the others would begin when the first is done."""
POLL_S = 0.1
ASK_S = 5.0
"""The store is asked so often how far it is, while others send."""
STILL_S = 20.0
"""Others of whom nothing arrives for so long are not waited for."""


def share_out(
    link: BlobLink,
    crew: Crew,
    path: Path,
    info: PayloadInfo,
    state: BlobState,
    *,
    send: Callable[[Sequence[int]], None],
    ask: Callable[[], BlobState],
) -> BlobState:
    """Sends the missing pieces together with `crew`; what is missing then.

    `send` sends pieces from here, `ask` asks the store.

    Raises:
        Stopped: the stop was asked for.
        Exception: as `send` and `ask`.
    """
    of = crew.size + 1
    total = sum(stop - start for start, stop in state.missing)
    if total < of * WORTH_PIECES:
        return state
    mine = _errand(link, path, info, state, of=of)
    asked = crew.begin([replace(mine, share=share) for share in range(1, of)])
    reports: Sequence[Report] = ()
    try:
        send(mine.pieces)
        _wait(link, asked, of - 1, ask)
        reports = asked.reports()
    finally:
        asked.end()
    for report in reports:
        link.meter.add(Transfers(bytes_up=report.bytes_up, retries=report.retries))
        if report.fault:
            log.warning(
                "rank %d did not bring its share of the upload (%s): this rank sends what is left",
                report.rank, report.fault,
            )  # fmt: skip
    return ask()


def carry(
    errand: Errand,
    *,
    rank: int,
    clock: Clock,
    random: Uniform,
    stop: threading.Event,
    meanwhile: Callable[[], None],
) -> Report:
    """Brings a share, if it can. `meanwhile` is called now and then, and may set `stop`."""
    meter, moved = Meter(), 0
    try:
        tls = client_context(errand.ca_pem) if errand.ca_pem else None
        site = BlobSite(errand.url, lambda refused: errand.authorization, tls, errand.timeout_s)
        tuning = Tuning(
            timeout_s=errand.timeout_s, deadline_s=errand.deadline_s,
            min_streams=errand.min_streams, max_streams=errand.max_streams,
        )  # fmt: skip
        link = BlobLink(site, tuning, clock, stop, random, meter)
        info = PayloadInfo(codec="fp32", size_bytes=errand.size_bytes, digest=errand.digest)
        path = Path(errand.path)
        must_fit(path, info)
        progress = Progress(
            f"uploading a share of {info.digest[:12]}…", total_bytes=info.size_bytes, clock=clock
        )
        pieces = errand.pieces
        with path.open("rb") as file:
            try:
                send_pieces(
                    link, file.fileno(), info, pieces, progress,
                    piece_bytes=errand.piece_bytes, meanwhile=meanwhile,
                )  # fmt: skip
            finally:
                moved = progress.moved_bytes
    except (PwwError, OSError, BeginAgain) as fault:
        return Report(rank, moved, meter.read().retries, str(fault) or type(fault).__name__)
    return Report(rank, moved, meter.read().retries, "")


def _errand(link: BlobLink, path: Path, info: PayloadInfo, state: BlobState, *, of: int) -> Errand:
    """The first share; together the ranks open as many connections as one would."""
    site, tuning = link.site, link.tuning
    return Errand(
        url=site.url, authorization=site.authorize(""), ca_pem=_authorities(site.tls),
        path=str(path.resolve()), digest=info.digest, size_bytes=info.size_bytes,
        piece_bytes=state.piece_bytes, missing=tuple(state.missing), share=0, of=of,
        timeout_s=tuning.timeout_s, deadline_s=STILL_S,
        min_streams=max(1, tuning.min_streams // of), max_streams=max(1, tuning.max_streams // of),
    )  # fmt: skip


def _authorities(tls: ssl.SSLContext | None) -> str:
    """Whom a context trusts, as PEM."""
    if tls is None:
        return ""
    return "".join(map(ssl.DER_cert_to_PEM_cert, tls.get_ca_certs(binary_form=True)))


def _wait(link: BlobLink, asked: Asked, num: int, ask: Callable[[], BlobState]) -> None:
    """Until all have reported, the store has everything, or nothing arrives any more."""
    since_s = asked_s = link.clock.monotonic()
    least = -1  # pieces missing at the store when it last was asked
    while len(asked.reports()) < num:
        if link.clock.wait(link.stop, POLL_S):
            raise Stopped(STOPPED)
        now_s = link.clock.monotonic()
        if now_s - asked_s < ASK_S:
            continue
        asked_s, state = now_s, ask()
        left = sum(stop - start for start, stop in state.missing)
        if left == 0:
            return
        log.info("%d pieces of the other ranks' shares are still to come", left)
        if least < 0 or left < least:
            least, since_s = left, now_s
        elif now_s - since_s >= STILL_S:
            log.warning(
                "nothing of the other ranks' shares arrived for %.0f s: this rank sends them",
                STILL_S,
            )
            return
