"""Serves one ASGI app from a thread of this process; the port is taken before anything else
happens.
"""

import asyncio
import logging
import socket
import threading
from typing import Any

import uvicorn

from pww.errors import StateError
from pww.transport.raw_body import HttpProtocol
from pww.transport.tls import ServerTls

log = logging.getLogger(__name__)
STARTUP_S = 20.0


class _Server(uvicorn.Server):
    """Hangs up on what stays connected at the end: a peer's goodbye in TLS may never come.

    uvicorn would wait for it in vain, and close its loop under a transport that is still open.
    """

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends idle connections at once, answers what is open, and hangs up on the rest."""
        self._hang_up(idle=True)
        await super().shutdown(sockets)
        self._hang_up(idle=False)
        await asyncio.sleep(0.01)  # for the loop to see them go

    def _hang_up(self, *, idle: bool) -> None:
        connection: Any
        for connection in list(self.server_state.connections):
            open_request = getattr(connection, "cycle", None)
            if idle and open_request is not None and not open_request.response_complete:
                continue
            if connection.transport is not None:
                connection.transport.abort()


class AsgiServer:
    """A listening port, then an app on it. `key` is the config key that sets the port."""

    def __init__(self, *, host: str, port: int, key: str, tls: ServerTls | None = None) -> None:
        """Binds at once, so that a taken port ends the program before it has done anything.

        Without `tls` it speaks plain HTTP.

        Raises:
            StateError: the port is in use, the host is not one of this machine's, or the
                certificate cannot be used.
        """
        self._tls = None if tls is None else tls.context()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host, port))
            self._socket.listen(128)
        except OSError as why:
            self._socket.close()
            raise StateError(
                f"cannot listen on {host}:{port}: {why.strerror}. Set {key} to a free port, or "
                "stop what uses it"
            ) from None
        self.port: int = self._socket.getsockname()[1]
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def start(self, app: Any, *, name: str) -> None:
        """Serves `app` until `stop`, once; returns when it answers."""
        assert self._server is None, "a server serves once: make another one"
        config = uvicorn.Config(
            app, http=HttpProtocol, lifespan="off", access_log=False, log_level="error",
            timeout_keep_alive=75, timeout_graceful_shutdown=3, ws="none", log_config=None,
        )  # fmt: skip
        config.load()
        config.ssl = self._tls  # uvicorn's own would take TLS settings of its choice
        self._server = _Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), daemon=True, name=name
        )
        self._thread.start()
        started = threading.Event()
        for _ in range(int(STARTUP_S / 0.02)):
            if self._server.started:
                return
            started.wait(0.02)
        raise StateError(f"{name} did not start within {STARTUP_S:.0f} s")

    def stop(self) -> None:
        """Stops serving and frees the port; waits a few seconds for open requests."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(5.0)
        self._socket.close()
