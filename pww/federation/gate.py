"""What of Flower's SuperLink the network may reach: a site's Fleet calls and the health check.

flwr serves its Control and Runtime APIs on the same port. Control is not authenticated in the open
build and runs code it is sent, so it must not be reachable. flwr also buffers and parses a body
before it knows who sent it, so here a caller is judged by its headers first, and bodies are
bounded.
"""

from collections.abc import Callable, Mapping
from typing import Any

Judge = Callable[[Mapping[bytes, bytes], str, str], int]
"""Headers, path and peer of a call to the status to refuse it with; 0 lets it through."""

FLEET = frozenset(
    f"/v1/fleet/{call}"
    for call in (
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "pull-object",
        "confirm-message-received",
        "push-messages",
        "push-object",
    )
)
MAX_BODY_BYTES = 16 << 20
"""Three of Flower's 5 MiB objects; a legitimate body carries one."""


def anybody(headers: Mapping[bytes, bytes], path: str, peer: str) -> int:
    """Lets everybody through: without credentials flwr's own check of keys is all there is."""
    return 0


class Gate:
    """An ASGI app in front of flwr's: everything but the allowed calls ends here, unread."""

    def __init__(
        self, app: Any, *, judge: Judge = anybody, max_body_bytes: int = MAX_BODY_BYTES
    ) -> None:
        self._app, self._judge, self._max_body_bytes = app, judge, max_body_bytes

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers 401, 404, 405, 411, 413 or 503 itself, and hands the rest on."""
        if scope["type"] != "http":
            return
        status = self._refusal(scope)
        if status:
            headers = [(b"content-length", b"0"), (b"connection", b"close")]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
            return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Any) -> int:
        """The status to refuse with; 0 lets the request through."""
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"")
        if scope["path"] == "/health":
            return 0 if scope["method"] in ("GET", "HEAD") and length in (b"", b"0") else 405
        if scope["path"] not in FLEET:
            return 404
        if scope["method"] != "POST":
            return 405
        client = scope.get("client")
        status = self._judge(headers, scope["path"], client[0] if client else "")
        if status:
            return status
        if not length.isdigit():
            return 411
        return 413 if int(length) > self._max_body_bytes else 0
