"""Where a central's process listens: its ports with or without TLS, and how others reach them.

Three ports, or fewer where some are the same: then calls below `/v1/fleet/` are Flower's, those
below `/v1/blobs/` the blob store's, and everything else is the coordinator's.
"""

import resource
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pww.central.credentials import server_tls
from pww.config import paths
from pww.config.schema import Config
from pww.transport.serve import AsgiServer

FLEET, BLOBS = "/v1/fleet/", "/v1/blobs/"
MAX_FILES = 1 << 20


@dataclass(frozen=True, slots=True)
class Listening:
    """The ports that are bound; nothing is served on them before `serve`."""

    keys: Path | None  # what sites are known by; None: no credentials, loopback only
    url: str  # of the coordinator, for a process on this machine
    leases: AsgiServer | None
    fleet: AsgiServer | None  # two of the three may be one
    blobs: AsgiServer | None  # None too where nothing travels by a blob store
    fleet_port: int
    blob_port: int  # 0: none

    def serve(self, *, leases: Any = None, fleet: Any = None, blobs: Any = None) -> None:
        """Starts these ASGI apps, each on its port."""
        rows = (
            (self.leases, leases, "coordinator"),
            (self.fleet, fleet, "aggregator"),
            (self.blobs, blobs, "blobs"),
        )
        for server in {row[0] for row in rows if row[1] is not None}:
            assert server is not None, "an app has a port"
            here = {name: app for its, app, name in rows if its is server and app is not None}
            only = next(iter(here.values())) if len(here) == 1 else None
            shared = SharedPort(here.get("coordinator"), here.get("aggregator"), here.get("blobs"))
            server.start(only or shared, name=", ".join(here))

    def stop(self) -> None:
        """Nothing comes in any more."""
        for server in (self.leases, self.fleet, self.blobs):
            if server is not None:
                server.stop()


def listen(config: Config, stack: ExitStack) -> Listening:
    """Binds the ports of this process's roles; `stack` lets go of them.

    Raises:
        StateError: a port is taken, or the certificate cannot be used.
    """
    allow_connections()
    central = config.central
    keys = None if central.security.keys == "none" else paths.PROJECT / central.security.keys
    tls = None if keys is None else server_tls(keys)
    bound: dict[int, AsgiServer] = {}

    def bind(port: int, key: str) -> AsgiServer:
        if port not in bound:
            bound[port] = AsgiServer(host=central.host, port=port, key=key, tls=tls)
            stack.callback(bound[port].stop)
        return bound[port]

    leases = fleet = blobs = None
    if "coordinator" in central.roles:
        leases = bind(central.port, "central.port")
    offered = config.transport.kind in ("auto", "blob")
    if "aggregator" in central.roles:
        fleet = bind(central.aggregator_port, "central.aggregator_port")
        if offered:
            blobs = bind(central.blob_port, "central.blob_port")
    return Listening(
        keys=keys,
        url=url_of(
            central.host, central.port if leases is None else leases.port, secure=tls is not None
        ),
        leases=leases,
        fleet=fleet,
        blobs=blobs,
        fleet_port=central.aggregator_port if fleet is None else fleet.port,
        blob_port=central.blob_port if offered else 0,
    )


class SharedPort:
    """Some of the three ASGI apps on one port, by path."""

    def __init__(self, coordinator: Any, fleet: Any, blobs: Any) -> None:
        apps = ((FLEET, fleet), (BLOBS, blobs), ("", coordinator or fleet or blobs))
        self._apps = [(prefix, app) for prefix, app in apps if app is not None]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Hands the request on."""
        path = scope.get("path", "") if scope["type"] == "http" else ""
        await next(app for prefix, app in self._apps if path.startswith(prefix))(
            scope, receive, send
        )


def allow_connections() -> None:
    """Many open connections must not keep the central from opening its files: as many as we may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or soft < hard:
        wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


def url_of(host: str, port: int, *, secure: bool) -> str:
    """Where a process on this machine reaches the central."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    shown = f"[{reachable}]" if ":" in reachable else reachable
    return f"{'https' if secure else 'http'}://{shown}:{port}"
