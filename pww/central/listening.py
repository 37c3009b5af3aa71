"""Where a central's process listens: its ports with or without TLS, and how others reach them.

Two ports, or one where `central.aggregator_port` is `central.port`: calls below `/v1/fleet/` are
Flower's, everything else is the coordinator's.
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

FLEET = "/v1/fleet/"
MAX_FILES = 1 << 20


@dataclass(frozen=True, slots=True)
class Listening:
    """The ports that are bound; nothing is served on them yet."""

    keys: Path | None  # what sites are known by; None: no credentials, loopback only
    url: str  # of the coordinator, for a process on this machine
    leases: AsgiServer | None
    fleet: AsgiServer | None  # the same one where both are one port
    fleet_port: int


def listen(config: Config, stack: ExitStack) -> Listening:
    """Binds the ports of this process's roles; `stack` lets go of them.

    Raises:
        StateError: a port is taken, or the certificate cannot be used.
    """
    allow_connections()
    central = config.central
    keys = None if central.security.keys == "none" else paths.PROJECT / central.security.keys
    tls = None if keys is None else server_tls(keys)

    def bind(port: int, key: str) -> AsgiServer:
        server = AsgiServer(host=central.host, port=port, key=key, tls=tls)
        stack.callback(server.stop)
        return server

    leases = fleet = None
    if "coordinator" in central.roles:
        leases = bind(central.port, "central.port")
    if "aggregator" in central.roles:
        if central.aggregator_port != central.port:
            fleet = bind(central.aggregator_port, "central.aggregator_port")
        else:
            fleet = leases
    return Listening(
        keys=keys,
        url=url_of(
            central.host, central.port if leases is None else leases.port, secure=tls is not None
        ),
        leases=leases,
        fleet=fleet,
        fleet_port=central.aggregator_port if fleet is None else fleet.port,
    )


class OnePort:
    """Two ASGI apps on one port, by path."""

    def __init__(self, coordinator: Any, fleet: Any) -> None:
        self._coordinator, self._fleet = coordinator, fleet

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Hands the request on."""
        theirs = scope["type"] == "http" and scope["path"].startswith(FLEET)
        await (self._fleet if theirs else self._coordinator)(scope, receive, send)


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
