"""TLS as every port of the central speaks it: its own CA only, TLS 1.2 or newer, names checked.

A certificate that does not hold is a fault that waiting cannot mend, so it ends the call with what
to do; a connection that breaks in the handshake may pass and is left to the retry loop.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path

from pww.errors import CentralError, StateError

NO_TLS = ("WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG")
TOO_OLD = ("UNSUPPORTED_PROTOCOL", "TLSV1_ALERT_PROTOCOL_VERSION", "NO_PROTOCOLS_AVAILABLE")


@dataclass(frozen=True, slots=True)
class ServerTls:
    """The files that a port proves itself with."""

    certificate: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """What the server speaks.

        Raises:
            StateError: a file cannot be read, or the two do not belong together.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as why:
            raise StateError(
                f"{self.certificate} and {self.key.name} cannot be used for TLS ({why}): give "
                "central.security.keys the folder that python -m pww.central init made"
            ) from why
        return context


def client_context(ca_pem: str) -> ssl.SSLContext:
    """What a site speaks: trusts certificates of this CA and of nobody else.

    Raises:
        StateError: it is no PEM certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks certificate and host name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_verify_locations(cadata=ca_pem)
    except (ssl.SSLError, ValueError) as why:
        raise StateError(
            f"ca.pem of the bundle is no certificate ({why}): copy the bundle anew from the central"
        ) from why
    return context


def explain(fault: BaseException, *, url: str) -> CentralError | None:
    """A failed connection as the error that ends the call; None where trying again may help."""
    inner: BaseException | None = fault
    while inner is not None and not isinstance(inner, ssl.SSLError):
        inner = inner.__cause__ or inner.__context__
    if isinstance(inner, ssl.SSLCertVerificationError):
        return CentralError(f"{url}: {_certificate(inner)}")
    reason = getattr(inner, "reason", None) or ""
    if reason in NO_TLS:
        return CentralError(
            f"{url} does not speak TLS: start the central with central.security.keys, or check "
            "host and port of central.url"
        )
    if reason in TOO_OLD:
        return CentralError(
            f"{url} speaks no TLS that is new enough (1.2 or newer): check what answers there"
        )
    return None


def _certificate(fault: ssl.SSLCertVerificationError) -> str:
    match fault.verify_code:  # OpenSSL's X509_V_ERR_…
        case 10:
            return (
                "the central's certificate has expired: make a new one there with python -m "
                "pww.central add host=NAME, start it again (and check this machine's clock)"
            )
        case 9:
            return (
                "the central's certificate is not valid yet: this machine's clock is behind; set it"
            )
        case 62 | 64:
            return (
                f"the central's certificate is for another host ({fault.verify_message}): use a "
                "name that was given to python -m pww.central init host=…, or add it with add host="
            )
        case _:
            return (
                f"its certificate is not of the central that this bundle belongs to "
                f"({fault.verify_message}): check central.url, or copy the bundle anew from there"
            )
