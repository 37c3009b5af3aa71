"""The way to the central: each of its ports, the key, the clock, and how much the way carries.

Every request goes as those of a run go, through the same proxy. Nothing stays at the central: no
member is registered, and what is sent to measure the way is forgotten there.
"""

import secrets
import statistics
import threading
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from functools import partial
from urllib.parse import urlsplit

import httpx
import numpy as np

from pww.clock import Clock
from pww.config import paths
from pww.config.schema import Config
from pww.errors import PwwError, Refused
from pww.launcher.finding import Finding, State
from pww.transport.bundle import Bundle
from pww.transport.http_connection import proxy_for

ASK_S = 10.0
TRIES = 5
CLOCK_S = 3.0
"""A Date header has whole seconds: less is no fault."""
SLOW_BYTES_PER_S = 1e6
"""A gigabyte takes a quarter of an hour."""


def findings(config: Config, *, clock: Clock) -> Iterator[Finding]:
    """Nothing for a run without a central."""
    if config.central.url == "none":
        return
    try:
        bundle = _bundle(config, clock)
        through = _through(config.central.url)
    except PwwError as fault:
        yield Finding("central", "bad", str(fault))
        return
    blobs = config.transport.kind in ("auto", "blob")
    ports = {"leases": urlsplit(config.central.url).port, "deltas": config.central.aggregator_port}
    if blobs:
        ports["blobs"] = config.central.blob_port
    reached: list[str] = []
    for what, port in ports.items():
        yield from _port(what, _url(config, port), through, bundle, clock, reached)
    if "leases" not in reached:
        return
    authorize, found = _session(config, bundle, clock)
    yield from found
    if authorize is not None and "blobs" in reached:
        yield from _rates(config, through, bundle, authorize, clock)


def _port(
    what: str, url: str, through: str, bundle: Bundle | None, clock: Clock, reached: list[str]
) -> Iterator[Finding]:
    took, dates = [], []
    try:
        with httpx.Client(
            verify=True if bundle is None else bundle.tls, timeout=ASK_S, trust_env=bool(through)
        ) as client:
            for _ in range(TRIES):
                asked = clock.monotonic()
                reply = client.get(f"{url}/health")
                took.append(clock.monotonic() - asked)
                dates.append((reply.headers.get("date", ""), clock.wall()))
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as why:
        yield Finding(what, "bad", f"{url}{through}: no answer ({why}); is the central up?")
        return
    if reply.status_code != 200:
        yield Finding(
            what, "bad",
            f"{url}{through}: HTTP {reply.status_code}, which is no central of this version; check "
            "central.url, its ports and proxies in between",
        )  # fmt: skip
        return
    reached.append(what)
    trip_s = statistics.median(took)
    yield Finding(
        what, "good", f"{url}{through}: answers, round trip {trip_s * 1e3:.0f} ms",
        {"round_trip_s": trip_s},
    )  # fmt: skip
    if what == "leases":
        yield from _clock(*dates[-1])


def _session(
    config: Config, bundle: Bundle | None, clock: Clock
) -> tuple[Callable[[str], str] | None, list[Finding]]:
    """How requests are let in, None if they are not; opens a session, which registers nobody."""
    from pww.replica.coordinator_client import HttpCoordinator
    from pww.replica.opening import Who

    if bundle is None:
        return (lambda refused: ""), []
    port = HttpCoordinator(
        config.central.url, config.transport, clock=clock, stop=threading.Event(),
        random=np.random.default_rng(), deadline_s=ASK_S, bundle=bundle,
    )  # fmt: skip
    authorize = partial(port.authorize, Who(config.replica_id, secrets.token_hex(16)))
    try:
        authorize("")
    except PwwError as fault:
        port.close()
        return None, [Finding("key", "bad", str(fault))]
    told = f"the central takes the key of {config.replica_id}"
    return authorize, [Finding("key", "good", told)]


def _rates(
    config: Config, through: str, bundle: Bundle | None, authorize: Callable[[str], str],
    clock: Clock,
) -> Iterator[Finding]:  # fmt: skip
    from pww.transport.blob_link import BlobLink
    from pww.transport.blob_peer import BlobSite
    from pww.transport.blob_rates import measure
    from pww.transport.carrier import Meter, Tuning

    tls = None if bundle is None else bundle.tls
    url, transport = _url(config, config.central.blob_port), config.transport
    tuning = Tuning(
        timeout_s=transport.timeout_s, retry_first_s=transport.retry_first_s,
        retry_max_s=transport.retry_max_s, deadline_s=ASK_S,
    )  # fmt: skip
    link = BlobLink(
        BlobSite(url, authorize, tls, tuning.timeout_s), tuning, clock, threading.Event(),
        np.random.default_rng(), Meter(),
    )  # fmt: skip
    for way in ("up", "down"):
        try:
            found = measure(link, way)
        except Refused as fault:
            word = "wants a key: give central.bundle" if fault.code == "unauthorised" else fault
            yield Finding(way, "bad", f"{url}{through}: {word}")
        except (PwwError, OSError) as fault:
            yield Finding(way, "bad", f"{url}{through}: {fault}")
        else:
            rate = found.bytes_per_s
            yield Finding(
                way, "good" if rate >= SLOW_BYTES_PER_S else "warning",
                f"{rate / 1e6:.1f} MB/s over {found.streams} streams or more{through}: a gigabyte "
                f"takes {1e9 / rate:.0f} s",
                {"bytes_per_s": rate, "streams": found.streams, "moved_bytes": found.moved_bytes},
            )  # fmt: skip


def _bundle(config: Config, clock: Clock) -> Bundle | None:
    if config.central.bundle == "none":
        return None
    folder = paths.PROJECT / config.central.bundle
    return Bundle.read(folder, replica=config.replica_id, clock=clock)


def _through(url: str) -> str:
    """Words for the proxy that requests go through, without its secret; "" for none."""
    proxy = proxy_for(urlsplit(url))
    if proxy is None:
        return ""
    return f" through {proxy.scheme}://{proxy.netloc.rpartition('@')[2]}"


def _url(config: Config, port: int | None) -> str:
    parts = urlsplit(config.central.url)
    host = parts.hostname or ""
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _clock(date: str, now_s: float) -> Iterator[Finding]:
    try:
        ahead_s = now_s - parsedate_to_datetime(date).timestamp()
    except ValueError:
        return
    state: State = "good" if abs(ahead_s) <= CLOCK_S else "warning"
    told = f"{ahead_s:+.0f} s against the central's"
    yield Finding("clock", state, told, {"ahead_s": ahead_s})
