"""The folder of a central's keys: made once, extended, and where a site's access is withdrawn.

    ca.pem ca.key.pem            the central's own certificate authority
    server.pem server.key.pem    what its ports prove themselves with
    allowed.json                 public key of each replica; fingerprints that were revoked
    operator.token               reads status and metrics
    bundles/SITE/                to be copied to the site, then deleted here: holds its private keys

Every file is its owner's only. `ca.pem` is written last: a folder without one is not finished.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import TypeAdapter, ValidationError

from pww.central.allowed import read_allowed, write_allowed
from pww.central.authority import check_hosts, hosts_of, make_ca, make_certificate
from pww.central.door import OPERATOR_FILE, new_operator_token
from pww.clock import Clock
from pww.errors import ConfigError, StateError
from pww.folder import owned, write_durably
from pww.transport.bundle import key_file, write_bundle
from pww.transport.site_key import fingerprint, private_pem, public_pem, read_key
from pww.transport.tls import ServerTls
from pww.wire import Name, ReplicaId

CA, CA_KEY = "ca.pem", "ca.key.pem"
SERVER, SERVER_KEY = "server.pem", "server.key.pem"
BUNDLES = "bundles"
BUSY = "another init, add or revoke works on it; wait for that one"
_REPLICA: TypeAdapter[str] = TypeAdapter(ReplicaId)
_SITE: TypeAdapter[str] = TypeAdapter(Name)


@dataclass(frozen=True, slots=True)
class Made:
    """What was written: bundle folders by site, and the host names of the certificate."""

    bundles: tuple[Path, ...]
    hosts: tuple[str, ...]


def server_tls(folder: Path) -> ServerTls:
    """The files that the central's ports serve with."""
    return ServerTls(folder / SERVER, folder / SERVER_KEY)


def init(
    folder: Path, *, hosts: Sequence[str], replicas: Sequence[str], port: int, clock: Clock
) -> Made:
    """Makes CA, server certificate, operator token, and a key and bundle for each replica.

    Raises:
        ConfigError: a host or replica that cannot be one.
        StateError: the folder has a CA already, or cannot be written.
    """
    hosts, wanted = check_hosts(hosts), check_replicas(replicas)
    with _changing(folder):
        if (folder / CA).exists():
            raise StateError(
                f"{folder} has a CA already, and a new one would lock out every site: use python "
                "-m pww.central add, or give another folder=…"
            )
        ca_key = ec.generate_private_key(ec.SECP384R1())
        ca = make_ca(ca_key, clock=clock)
        write_durably(folder / CA_KEY, private_pem(ca_key), private=True)
        _write_server(folder, ca=ca, ca_key=ca_key, hosts=hosts, clock=clock)
        write_durably(folder / OPERATOR_FILE, new_operator_token().encode(), private=True)
        write_allowed(folder, replicas={}, revoked=())
        made = _add_keys(folder, wanted, ca=ca, hosts=hosts, port=port)
        write_durably(folder / CA, ca.encode(), private=True)
    return made


def add(
    folder: Path, *, hosts: Sequence[str], replicas: Sequence[str], port: int, clock: Clock
) -> Made:
    """Makes keys for more replicas; with `hosts`, a new server certificate that has them too.

    Raises:
        ConfigError: a host or replica that cannot be one, or a replica that has a key.
        StateError: the folder was not made by `init`, or cannot be written.
    """
    more, wanted = check_hosts(hosts), check_replicas(replicas)
    _must_exist(folder)
    with _changing(folder):
        ca = _read(folder, CA)
        has = read_allowed(folder).replicas
        doubled = [f"replicas={name}: has a key; revoke replica={name} first" for name in wanted]
        doubled = [fault for fault, name in zip(doubled, wanted, strict=True) if name in has]
        if doubled:
            raise ConfigError(doubled)
        known = hosts_of(_read(folder, SERVER))
        hosts = tuple(dict.fromkeys((*known, *more)))
        if more:
            pem = _read(folder, CA_KEY).encode()
            remedy = "give the folder that init made, or make a new one"
            ca_key = read_key(pem, name=str(folder / CA_KEY), remedy=remedy)
            _write_server(folder, ca=ca, ca_key=ca_key, hosts=hosts, clock=clock)
        return _add_keys(folder, wanted, ca=ca, hosts=hosts, port=port)


def revoke(folder: Path, *, replica: str = "", site: str = "") -> tuple[str, ...]:
    """Withdraws the key of one replica, or of all of a site; returns their names.

    A running central refuses them from its next request on. Their keys never come back: `add`
    makes new ones.

    Raises:
        ConfigError: no such replica or site has a key.
        StateError: the folder was not made by `init`, or cannot be written.
    """
    if replica:
        check_replicas([replica])
    elif not _is(_SITE, site):
        raise ConfigError([f"site={site}: 1 to 32 of a-z 0-9 . _ -, starting with a-z or 0-9"])
    _must_exist(folder)
    with _changing(folder):
        content = read_allowed(folder)
        gone = tuple(
            name for name in content.replicas if name == replica or name.startswith(f"{site}/")
        )
        if not gone:
            word = f"replica={replica}" if replica else f"site={site}"
            known = ", ".join(content.replicas) or "none"
            raise ConfigError([f"{word}: has no key here; those with one: {known}"])
        prints = {fingerprint(content.replicas[name]) for name in gone}
        left = {name: pem for name, pem in content.replicas.items() if name not in gone}
        write_allowed(folder, replicas=left, revoked={*content.revoked, *prints})
        for name in gone:
            of_site, _, leaf = name.partition("/")
            (folder / BUNDLES / of_site / key_file(leaf)).unlink(missing_ok=True)
    return gone


def check_replicas(replicas: Iterable[str]) -> tuple[str, ...]:
    """The replica ids in order, each once.

    Raises:
        ConfigError: one of them is no `site/name`: it would become a path.
    """
    found = tuple(dict.fromkeys(name.strip() for name in replicas))
    faults = [
        f"replicas={name}: SITE/REPLICA, each 1 to 32 of a-z 0-9 . _ -, starting with a-z or 0-9"
        for name in found
        if not _is(_REPLICA, name)
    ]
    if faults:
        raise ConfigError(faults)
    return found


def _is(kind: TypeAdapter[str], text: str) -> bool:
    try:
        kind.validate_python(text, strict=True)
    except ValidationError:
        return False
    return True


def _must_exist(folder: Path) -> None:
    """Touches nothing that `init` did not make.

    Raises:
        StateError: there are no keys in the folder.
    """
    if not (folder / CA).is_file():
        raise StateError(
            f"{folder} holds no keys of a central: give the folder that python -m pww.central init "
            "made, folder=…"
        )


@contextmanager
def _changing(folder: Path) -> Iterator[None]:
    """Holds the folder while it is changed; a failing disk becomes a sentence."""
    try:
        with owned(folder, remedy=BUSY):
            folder.chmod(0o700)
            yield
    except OSError as fault:
        raise StateError(
            f"{folder} cannot be written ({fault}): make room there, or give another folder=…, "
            "and repeat the command"
        ) from fault


def _add_keys(
    folder: Path, replicas: Sequence[str], *, ca: str, hosts: Sequence[str], port: int
) -> Made:
    """The bundles first, then the list: a crash leaves a key that nobody accepts."""
    content = read_allowed(folder)
    allowed = dict(content.replicas)
    host = hosts[0] if hosts else "127.0.0.1"
    url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    by_site: dict[str, dict[str, bytes]] = {}
    for replica in replicas:
        key = ec.generate_private_key(ec.SECP384R1())
        site, _, name = replica.partition("/")
        by_site.setdefault(site, {})[name] = private_pem(key)
        allowed[replica] = public_pem(key)
    folders = []
    for site, keys in by_site.items():
        folders.append(folder / BUNDLES / site)
        write_bundle(folders[-1], ca=ca, url=url, keys=keys)
    write_allowed(folder, replicas=allowed, revoked=content.revoked)
    return Made(tuple(folders), tuple(hosts))


def _write_server(
    folder: Path,
    *,
    ca: str,
    ca_key: ec.EllipticCurvePrivateKey,
    hosts: Sequence[str],
    clock: Clock,
) -> None:
    """A new key and certificate in one file each. A running central has read the old ones."""
    key = ec.generate_private_key(ec.SECP384R1())
    pem = make_certificate(key, ca_pem=ca, ca_key=ca_key, hosts=hosts, clock=clock)
    write_durably(folder / SERVER_KEY, private_pem(key), private=True)
    write_durably(folder / SERVER, pem.encode(), private=True)


def _read(folder: Path, name: str) -> str:
    try:
        return (folder / name).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as why:
        raise StateError(
            f"{folder / name} cannot be read ({why}): make the folder with python -m pww.central "
            "init, or give folder=… the one that it made"
        ) from why
