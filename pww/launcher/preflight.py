"""What a run of this configuration needs of the machine it is typed on, looked at one by one.

Nothing is made, queued or sent but a few small requests to the central. A finding is good, a
warning, or bad: with a bad one a job would not run, or would stop soon.
"""

import os
import re
import shutil
import ssl
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pww.clock import Clock
from pww.config import paths
from pww.config.schema import Config, Images
from pww.errors import DataError, PwwError, StateError
from pww.launcher import bootstrap, identity, slurm

GOOD_GB, LEAST_GB = 20.0, 1.0
GOOD_FILES, LEAST_FILES = 10_000, 500
ASK_S = 10.0
TRIES = 5
CLOCK_S = 3.0
"""A Date header has whole seconds: less is no fault."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    what: str
    state: Literal["good", "warning", "bad"]
    told: str


def findings(config: Config, *, clock: Clock) -> Iterator[Finding]:
    """Everything, in the order of what a run needs first."""
    yield from _programs(config)
    yield from _folders(config)
    yield _code()
    yield _corpus(config)
    yield from _scheduler(config)
    yield from _central(config, clock)


def _programs(config: Config) -> Iterator[Finding]:
    lacking = [
        *bootstrap.unnamed(config.site),
        *bootstrap.lacking(config, environ=os.environ),
    ]
    for sentence in lacking:
        yield Finding("site", "bad", sentence)
    if not lacking:
        yield Finding("site", "good", f"{config.site.name}: nothing is missing")


def _folders(config: Config) -> Iterator[Finding]:
    wanted = {
        "runs": paths.PROJECT / config.run.root,
        "home": Path.home(),
    }
    if not isinstance(config.data, Images):
        wanted["corpora"] = paths.PROJECT / config.data.cache
    if config.site.scratch != "none":
        wanted["scratch"] = Path(config.site.scratch)
    for what, folder in wanted.items():
        yield _folder(what, folder)


def _folder(what: str, folder: Path) -> Finding:
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not os.access(there, os.W_OK):
        return Finding(what, "bad", f"{folder}: {there} may not be written to; give another folder")
    space = os.statvfs(there)
    free_gb = space.f_bavail * space.f_frsize / 1e9
    files = space.f_favail if space.f_files else GOOD_FILES  # some file systems do not count them
    told = f"{folder}: {free_gb:.0f} GB and {files} files free on its file system"
    if free_gb < LEAST_GB or files < LEAST_FILES:
        return Finding(what, "bad", f"{told}; make room")
    if free_gb < GOOD_GB or files < GOOD_FILES:
        return Finding(what, "warning", f"{told}; a few checkpoints may fill it")
    return Finding(what, "good", told)


def _code() -> Finding:
    code, _ = identity.current()
    changed = " with changes" if code.changed else ""
    versions = ", ".join(f"{name} {version}" for name, version in code.packages.items())
    told = f"commit {code.commit[:12]}{changed}, Python {code.python}, {versions}"
    return Finding("code", "good", told)


def _corpus(config: Config) -> Finding:
    if isinstance(config.data, Images):
        return _gallery(config.data)
    from pww.data.corpus import find

    command = f"python -m pww.data tokenize data={config.data.name}"
    try:
        corpus = find(
            config.data, seq_len=config.model.seq_len, vocab_multiple=config.model.vocab_multiple,
            project=paths.PROJECT, command=command,
        )  # fmt: skip
    except DataError as fault:
        return Finding("data", "warning", str(fault))
    made = corpus.manifest
    return Finding(
        "data", "good", f"{config.data.name}: {made.num_windows} windows, digest {made.digest[:16]}"
    )


def _gallery(images: Images) -> Finding:
    from pww.data.images.gallery import open_gallery

    try:
        found = open_gallery(images, project=paths.PROJECT)
    except DataError as fault:
        return Finding("data", "warning", str(fault))
    told = f"{images.name}: {found.num_windows} images, digest {found.digest[:16]}"
    return Finding("data", "good", told)


def _scheduler(config: Config) -> Iterator[Finding]:
    queue = config.site.queue
    if queue.kind != "slurm" or shutil.which("sinfo") is None:
        return
    try:
        said = slurm.partition(queue.partition)
    except StateError as fault:
        yield Finding("queue", "bad", str(fault))
        return
    state, _, limit = said.partition(" ")
    if not said:
        yield Finding(
            "queue", "bad",
            f"site.queue.partition={queue.partition}: Slurm knows no such partition",
        )  # fmt: skip
    elif state != "up":
        yield Finding("queue", "warning", f"partition {queue.partition} is {state}")
    else:
        longest = slurm.longest_array()
        told = f"partition {queue.partition} is up, at most {limit}, arrays of {longest}"
        yield Finding("queue", "good", told)


def _central(config: Config, clock: Clock) -> Iterator[Finding]:
    import httpx

    if config.central.url == "none":
        return
    try:
        tls = _tls(config, clock)
    except PwwError as fault:
        yield Finding("central", "bad", str(fault))
        return
    parts = urlsplit(config.central.url)
    ports = {"leases": parts.port, "deltas": config.central.aggregator_port}
    if config.transport.kind in ("auto", "blob"):
        ports["blobs"] = config.central.blob_port
    proxy = os.environ.get(f"{parts.scheme}_proxy".upper()) or os.environ.get(
        f"{parts.scheme}_proxy", ""
    )
    through = f" through {_without_secret(proxy)}" if proxy else ""
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    for what, port in ports.items():
        url = f"{parts.scheme}://{host}:{port}"
        took, dates = [], []
        try:
            with httpx.Client(verify=tls, timeout=ASK_S) as client:
                for _ in range(TRIES):
                    asked = clock.monotonic()
                    reply = client.get(f"{url}/status")
                    took.append(clock.monotonic() - asked)
                    dates.append((reply.headers.get("date", ""), clock.wall()))
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as why:
            yield Finding(what, "bad", f"{url}{through}: no answer ({why}); is the central up?")
            continue
        trip_ms = statistics.median(took) * 1e3
        yield Finding(what, "good", f"{url}{through}: answers, round trip {trip_ms:.0f} ms")
        if what == "leases":
            yield from _clock(dates[-1])


def _tls(config: Config, clock: Clock) -> ssl.SSLContext | bool:
    from pww.transport.bundle import Bundle

    if config.central.bundle == "none":
        return True
    folder = paths.PROJECT / config.central.bundle
    return Bundle.read(folder, replica=config.replica_id, clock=clock).tls


def _clock(told: tuple[str, float]) -> Iterator[Finding]:
    try:
        ahead_s = told[1] - parsedate_to_datetime(told[0]).timestamp()
    except ValueError:
        return
    state: Literal["good", "warning"] = "good" if abs(ahead_s) <= CLOCK_S else "warning"
    yield Finding("clock", state, f"{ahead_s:+.0f} s against the central's")


def _without_secret(url: str) -> str:
    return re.sub(r"//[^@/]*@", "//…@", url)
