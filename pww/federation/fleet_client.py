"""flwr's Fleet calls as a site makes them: signed, bounded in time, and with faults of our own.

flwr's version interceptor is left out: on a mismatch it would end this process.
"""

import ssl
from typing import Any

import httpx
from flwr.supernode.fleet_http_client import FleetHttpClient

from pww.federation.signing import Signer
from pww.transport.proxied import PROXY_ASKS, credentials_wanted, not_let_through
from pww.transport.retry import TryAgain
from pww.transport.tls import explain

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


class NotAdmitted(Exception):
    """The central does not know this node's key (yet, or any more)."""


class RunOver(Exception):
    """What was asked about belongs to an earlier life of the central."""


class FleetClient:
    """One connection to the aggregator at `address` (`host:port`)."""

    def __init__(
        self,
        address: str,
        signer: Signer,
        *,
        timeout_s: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Without `tls` it speaks plain HTTP; nothing is sent yet."""
        self._signer = signer
        self._url = f"{'http' if tls is None else 'https'}://{address}"
        self._api: Any = FleetHttpClient(self._url, interceptors=[signer], verify=tls or False)
        # flwr's own has a fixed timeout of 30 s and follows redirects. A proxy from the environment
        # is for the way out of a cluster, not for this machine.
        self._api._client.close()
        self._api._client = httpx.Client(
            verify=tls or False,  # without TLS there is nothing to verify
            timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, 10.0)),
            trust_env=address.rsplit(":", 1)[0] not in LOOPBACK,
        )

    def call(self, name: str, request: Any) -> Any:
        """One call of the Fleet service, as in `call("PullMessages", PullMessagesRequest(...))`.

        Raises:
            TryAgain: no answer, or one that may be different next time. Its cause is a
                `httpx.ConnectError` when the request cannot have arrived.
            NotAdmitted: the key is unknown or the node is in the wrong state.
            RunOver: the flwr run of the request is finished.
            CentralError: what answers does not prove to be the central, or a proxy lets nothing
                through.
        """
        offset_s = self._signer.offset_s
        try:
            return getattr(self._api, name)(request)
        except httpx.HTTPStatusError as fault:
            status = fault.response.status_code
            if status == 401 and self._signer.offset_s != offset_s:
                raise TryAgain("signed by a wrong clock, now corrected") from fault
            if status in (401, 412):
                raise NotAdmitted(f"HTTP {status}") from fault
            if status == PROXY_ASKS:
                raise credentials_wanted(self._url) from fault
            if status == 403:
                raise RunOver("HTTP 403") from fault
            raise TryAgain(f"HTTP {status} {fault.response.text[:80]}".strip()) from fault
        except httpx.TransportError as fault:
            final = explain(fault, url=self._url) or not_let_through(fault, url=self._url)
            if final is not None:
                raise final from fault
            raise TryAgain(str(fault) or type(fault).__name__) from fault
        except ValueError as fault:  # flwr's word for a body that is no protobuf
            raise TryAgain(f"an answer that is not Flower's ({fault})") from fault

    def close(self) -> None:
        """Closes the connection."""
        self._api.close()
