"""The central's own certificate authority: makes the CA, and server certificates for host names.

Nobody else's CA is trusted by a bundle, so a certificate of it is all that the central needs to
show. EC P-384 throughout, as the replicas' keys are.
"""

import datetime
import ipaddress
import re
from collections.abc import Iterable

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pww.clock import Clock
from pww.errors import ConfigError

YEARS = 10
LOOPBACK = ("localhost", "127.0.0.1", "::1")
_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_HOST = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(\.{_LABEL})*\Z")


def check_hosts(hosts: Iterable[str]) -> tuple[str, ...]:
    """The hosts in order, each once, in lower case.

    Raises:
        ConfigError: one of them is neither a DNS name nor an IP address.
    """
    found = list(dict.fromkeys(host.strip().lower() for host in hosts))
    faults = [
        f"host={host}: a DNS name or an IP address, without scheme and port"
        for host in found
        if not _is_ip(host) and (not _HOST.match(host) or re.fullmatch(r"[0-9.]+", host))
    ]
    if faults:
        raise ConfigError(faults)
    return tuple(found)


def make_ca(key: ec.EllipticCurvePrivateKey, *, clock: Clock) -> str:
    """A self-signed CA that may sign server certificates and nothing below that; PEM."""
    name = _name("pww central CA")
    builder = _builder(name, name, key.public_key(), clock, years=YEARS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(sign_certificates=True), critical=True)
    builder = builder.add_extension(
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
    )
    return _pem(builder.sign(key, SHA384()))


def make_certificate(
    key: ec.EllipticCurvePrivateKey,
    *,
    ca_pem: str,
    ca_key: ec.EllipticCurvePrivateKey,
    hosts: Iterable[str],
    clock: Clock,
    years: int = YEARS,
) -> str:
    """A server certificate for `hosts` and loopback, valid for `years`; PEM."""
    ca = x509.load_pem_x509_certificate(ca_pem.encode())
    names: list[x509.GeneralName] = []
    for host in dict.fromkeys((*hosts, *LOOPBACK)):
        ip = ipaddress.ip_address(host) if _is_ip(host) else None
        names.append(x509.DNSName(host) if ip is None else x509.IPAddress(ip))
    builder = _builder(_name("pww central"), ca.subject, key.public_key(), clock, years=years)
    identifier = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    for extension, critical in (
        (x509.SubjectAlternativeName(names), False),
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(sign_certificates=False), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
        (x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), False),
    ):
        builder = builder.add_extension(extension, critical=critical)
    return _pem(builder.sign(ca_key, SHA384()))


def hosts_of(certificate_pem: str) -> tuple[str, ...]:
    """The names that a server certificate is for, loopback left out."""
    certificate = x509.load_pem_x509_certificate(certificate_pem.encode())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    hosts = (str(name.value) for name in names)
    return tuple(host for host in hosts if host not in LOOPBACK)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    clock: Clock,
    *,
    years: int,
) -> x509.CertificateBuilder:
    now = datetime.datetime.fromtimestamp(int(clock.wall()), tz=datetime.UTC)
    day = datetime.timedelta(days=1)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day)  # a site's clock may be behind
        .not_valid_after(now + 365.25 * years * day)
    )


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
