"""What networks and servers do wrong, one fault each, for `bad_http.BadHttp`: for tests."""

import re
import threading
from dataclasses import replace

from bad_http import Fault, Forward, HangUp, Reply, Request

from pww.transport.blob_wire import CRC, etag


class Nth:
    """Applies a fault to the n-th request that it is for; with `ever` to all from there on."""

    def __init__(self, wanted: str, fault: Fault, *, n: int = 2, ever: bool = False) -> None:
        self.wanted, self.fault, self.n, self.ever = wanted, fault, n, ever
        self.lock, self.seen, self.hit = threading.Lock(), 0, 0

    def __call__(self, request: Request, forward: Forward) -> Reply:
        if re.match(self.wanted, f"{request.method} {request.target}"):
            with self.lock:
                self.seen += 1
                now = self.seen == self.n or (self.ever and self.seen > self.n)
                self.hit += now
            if now:
                return self.fault(request, forward)
        return forward(request)


def early_close(request: Request, forward: Forward) -> Reply:
    """No length is told, and the body ends in the middle: for http the end of the connection."""
    reply = forward(request)
    del reply.headers["content-length"]
    raise HangUp(reply.sent()[: -len(reply.body) // 2])


def cut_off(request: Request, forward: Forward) -> Reply:
    """The length is told, and the body ends in the middle."""
    reply = forward(request)
    raise HangUp(reply.sent()[: -len(reply.body) // 2])


def rounded_down(request: Request, forward: Forward) -> Reply:
    """A range that begins earlier and ends earlier, at multiples of something."""
    start, end = map(int, re.findall("[0-9]+", request.headers["range"]))
    ranged = f"bytes={start}-{max((end + 1) // 4096 * 4096 - 4097, start)}"
    return forward(replace(request, headers={**request.headers, "range": ranged}))


def shifted(request: Request, forward: Forward) -> Reply:
    """As many bytes as asked for, but others."""
    start, end = map(int, re.findall("[0-9]+", request.headers["range"]))
    shift = -1 if start else 1
    ranged = f"bytes={start + shift}-{end + shift}"
    return forward(replace(request, headers={**request.headers, "range": ranged}))


def whole(request: Request, forward: Forward) -> Reply:
    """200 instead of 206."""
    headers = {k: v for k, v in request.headers.items() if k not in ("range", "if-range")}
    return forward(replace(request, headers=headers))


def replaced(request: Request, forward: Forward) -> Reply:
    """Another object of the same size, told honestly by its tag."""
    reply = forward(request)
    reply.headers["etag"] = etag("0" * 64)
    reply.body = bytes(len(reply.body))
    return reply


def gzipped(request: Request, forward: Forward) -> Reply:
    """A proxy that calls it compressed."""
    reply = forward(request)
    reply.headers["content-encoding"] = "gzip"
    return reply


def flipped_down(request: Request, forward: Forward) -> Reply:
    reply = forward(request)
    reply.body = flip(reply.body)
    return reply


def flipped_unsaid(request: Request, forward: Forward) -> Reply:
    """A proxy that passes on no header that it does not know."""
    reply = flipped_down(request, forward)
    reply.headers.pop(CRC, None)
    return reply


def lost_reply(request: Request, forward: Forward) -> Reply:
    forward(request)
    raise HangUp


def truncated_up(request: Request, forward: Forward) -> Reply:
    """Shorter, and said to be."""
    return forward(replace(request, body=request.body[:-100]))


def longer_up(request: Request, forward: Forward) -> Reply:
    return forward(replace(request, body=request.body + b"x"))


def flipped_up(request: Request, forward: Forward) -> Reply:
    return forward(replace(request, body=flip(request.body)))


def unavailable(request: Request, forward: Forward) -> Reply:
    return Reply(503, {"retry-after": "7", "content-length": "0"}, b"")


def redirect(request: Request, forward: Forward) -> Reply:
    return Reply(302, {"location": "http://portal.example/login", "content-length": "0"}, b"")


def portal(request: Request, forward: Forward) -> Reply:
    page = b"<html>please accept our terms</html>"
    return Reply(200, {"content-type": "text/html", "content-length": str(len(page))}, page)


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
