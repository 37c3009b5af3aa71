"""The way that this run's payloads travel, as the central said at registration."""

import logging
import ssl
import threading
from collections.abc import Callable

import httpx

from pww.clock import Clock
from pww.config.schema import Config
from pww.transport.blob import BlobCarrier
from pww.transport.carrier import Carrier, Tuning
from pww.transport.crew import Crew
from pww.transport.retry import Uniform
from pww.wire import Carriage

log = logging.getLogger(__name__)


def carrier_of(
    carriage: Carriage,
    config: Config,
    *,
    run: str,
    authorize: Callable[[str], str],
    clock: Clock,
    stop: threading.Event,
    random: Uniform,
    tls: ssl.SSLContext | None,
    crew: Crew | None = None,
) -> Carrier | None:
    """What brings payloads above `carriage.inline_mb`; None if they only travel inside messages.

    `crew` are ranks that help to upload to the central's store; to an object store this rank
    uploads alone.

    Raises:
        CentralError: the central names a way that cannot be used here.
    """
    transport = config.transport
    if carriage.inline_mb != transport.inline_mb or (carriage.url or "none") != transport.url:
        log.info("payloads travel as the central says: %s", _words(carriage))
    tuning = Tuning(
        timeout_s=transport.timeout_s, retry_first_s=transport.retry_first_s,
        retry_max_s=transport.retry_max_s,
    )  # fmt: skip
    if carriage.url:
        from pww.transport.fsspec_carrier import FsspecCarrier
        from pww.transport.fsspec_place import place_of

        return FsspecCarrier(
            place_of(carriage.url, run), clock=clock, stop=stop, random=random, tuning=tuning
        )
    if not carriage.blob_port:
        return None
    url = httpx.URL(config.central.url)
    return BlobCarrier(
        str(url.copy_with(port=carriage.blob_port, path="")),
        clock=clock, stop=stop, random=random, authorize=authorize, tls=tls, tuning=tuning,
        crew=crew,
    )  # fmt: skip


def _words(carriage: Carriage) -> str:
    small = f"up to {carriage.inline_mb} MB in messages, larger ones "
    if carriage.url:
        from pww.transport.fsspec_place import without_credentials

        return small + "by " + without_credentials(carriage.url)
    return small + ("by its blob store" if carriage.blob_port else "not at all")
