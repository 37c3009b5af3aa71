"""One HTTP/1.1 connection for big bodies: received straight into the caller's memory.

The standard library's client, because it can do that: httpx copies a body three times, which costs
a transfer half its speed. Follows no redirect and decodes nothing; knows proxies from the
environment, as httpx does. Every wait for the socket has the timeout; nothing is retried here.
"""

import fcntl
import http.client
import socket
import ssl
import sys
import termios
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from pww.errors import CentralError
from pww.transport.file_part import FilePart

LOOPBACK = ("127.0.0.1", "localhost", "::1")
Faults = (OSError, http.client.HTTPException)
"""What a broken connection raises."""
RTT = slice(68, 72)
"""Where Linux's `struct tcp_info` has the smoothed round trip, in microseconds."""


class HttpConnection:
    """A connection to the host of `url`, made when needed and made anew after a fault."""

    def __init__(self, url: str, *, tls: ssl.SSLContext | None, timeout_s: float) -> None:
        """`tls` is for https; without one the machine's authorities are trusted.

        Raises:
            CentralError: no http(s) URL, or a proxy that is none.
        """
        self._url, self._tls, self._timeout_s = split(url), tls, timeout_s
        self._proxy = proxy_for(self._url)
        self._http: http.client.HTTPConnection | None = None
        self._reply: http.client.HTTPResponse | None = None
        self._closed = False
        self._sent = 0

    def request(
        self, method: str, path: str, headers: Mapping[str, str], body: FilePart | None = None
    ) -> http.client.HTTPResponse:
        """Sends a request; the answer's body is to be read before the next one.

        Raises:
            OSError, http.client.HTTPException: the connection failed, and is closed.
        """
        url = self._url
        if self._proxy is not None and url.scheme == "http":
            target = f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}{path}"
            headers = {**headers, **_proxy_authorization(self._proxy)}
        else:
            target = f"{url.path}{path}"
        if method != "GET":
            headers = {**headers, "content-length": str(0 if body is None else body.size_bytes)}
        self._sent = 0
        try:
            if self._http is None:
                self._http = self._connect()
            self._http.request(method, target, headers=dict(headers))
            if body is not None:
                body.send(self._http.sock, timeout_s=self._timeout_s, sent=self._count)
            self._reply = self._http.getresponse()
        except BaseException:
            self.drop()
            raise
        return self._reply

    def _connect(self) -> http.client.HTTPConnection:
        if self._closed:
            raise ConnectionAbortedError("closed by this side")
        url, proxy = self._url, self._proxy
        near = url if proxy is None else proxy
        host, port = near.hostname or "", _port(near)
        if url.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=self._timeout_s)
        secure = http.client.HTTPSConnection(
            host, port, timeout=self._timeout_s, context=self._tls or ssl.create_default_context()
        )
        if proxy is not None:
            secure.set_tunnel(url.hostname or "", _port(url), _proxy_authorization(proxy))
        return secure

    def drop(self) -> None:
        """Ends the connection: what is still to come on it is of no use."""
        connection, self._http = self._http, None
        reply, self._reply = self._reply, None
        if reply is not None:  # it holds the socket where it is to end with its body
            reply.close()
        if connection is not None:
            connection.close()

    def abort(self) -> None:
        """From another thread: whoever waits for the socket stops doing so, and no more is sent."""
        self._closed = True
        self.interrupt()

    def interrupt(self) -> bool:
        """From another thread: whoever waits for the socket stops doing so; False without one."""
        connection = self._http
        sock = None if connection is None else connection.sock
        if sock is not None:
            with suppress(OSError):  # an `SSLSocket`'s own has its reader go on without TLS
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
        return sock is not None

    def arrived(self) -> int:
        """From another thread: bytes of the last request's body that the other side has."""
        connection = self._http
        sock = None if connection is None else connection.sock
        if sock is None:
            return 0
        waiting = bytearray(4)
        with suppress(OSError, ValueError):  # closed meanwhile: then its descriptor is -1
            fcntl.ioctl(sock, termios.TIOCOUTQ, waiting)
        return max(self._sent - int.from_bytes(waiting, sys.byteorder), 0)

    def round_trip_s(self) -> float:
        """From another thread: the system's measure of the way; 0 without a connection."""
        connection = self._http
        sock = None if connection is None else connection.sock
        told = b""
        if sock is not None:
            with suppress(OSError):  # closed meanwhile
                told = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, RTT.stop)
        return int.from_bytes(told[RTT], sys.byteorder) / 1e6

    def _count(self, num_bytes: int) -> None:
        self._sent += num_bytes


def split(url: str) -> SplitResult:
    """The parts of an http(s) URL, without a slash at its end.

    Raises:
        CentralError: it is none.
    """
    try:
        parts = urlsplit(url.rstrip("/"))
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise CentralError(f"{url} is no http or https URL: give one like https://central:29512")
    return parts


def proxy_for(url: SplitResult) -> SplitResult | None:
    """The environment's proxy: for the way out of a cluster, not for this machine.

    Raises:
        CentralError: it is no http:// proxy.
    """
    host = url.hostname or ""
    proxies = getproxies()
    text = proxies.get(url.scheme) or proxies.get("all")
    if host in LOOPBACK or not text or proxy_bypass(f"{host}:{_port(url)}"):
        return None
    proxy = urlsplit(text if "://" in text else f"http://{text}")
    if proxy.scheme != "http" or not proxy.hostname:
        shown = text.rpartition("@")[2]  # never a password
        raise CentralError(
            f"the proxy {shown} for {url.scheme} URLs is not an http:// proxy: set "
            f"{url.scheme.upper()}_PROXY to one, or NO_PROXY to reach {host} without"
        )
    return proxy


def _proxy_authorization(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    secret = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"proxy-authorization": f"Basic {b64encode(secret.encode()).decode()}"}


def _port(url: SplitResult) -> int:
    return url.port or (443 if url.scheme == "https" else 80)
