"""What a site needs of one central, as a folder: the CA, a key for each of its replicas, the URL.

`python -m pww.central init` writes it at the central; a person copies it to the site. Its files are
readable by their owner only, and a key that others can read is refused like ssh does it.
"""

import json
import ssl
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pww.clock import Clock
from pww.errors import StateError
from pww.folder import write_durably
from pww.transport.site_key import SiteKey, fingerprint, read_key
from pww.transport.tls import client_context

CA, INFO = "ca.pem", "central.json"
MAX_BYTES = 1 << 16
REMEDY = "copy the bundle anew from the central (bundles/SITE in the folder of its keys)"


@dataclass(frozen=True, slots=True)
class Bundle:
    """One replica's part of a bundle, ready for use."""

    key: SiteKey
    tls: ssl.SSLContext

    @classmethod
    def read(cls, folder: Path, *, replica: str, clock: Clock) -> "Bundle":
        """Opens the bundle in `folder` for `replica` (`site/name`).

        Raises:
            StateError: the folder is no bundle, is damaged, or has no key for the replica.
        """
        ca = _text(folder / CA)
        info = _text(folder / INFO)
        try:
            told = json.loads(info)
            expected, of_site = told["fingerprint"], told["site"]
        except (ValueError, KeyError, TypeError):
            raise StateError(f"{folder / INFO} cannot be read: {REMEDY}") from None
        if fingerprint(ca) != expected:
            raise StateError(
                f"{folder / CA} has fingerprint {fingerprint(ca)[:16]}…, {INFO} says "
                f"{str(expected)[:16]}…: {REMEDY}"
            )
        site, _, name = replica.partition("/")
        if site != of_site:
            raise StateError(
                f"{folder} is the bundle of site {of_site}, this is replica {replica}: give "
                f"central.bundle the one of site {site}"
            )
        path = folder / key_file(name)
        if not path.is_file():
            others = ", ".join(sorted(p.name.removesuffix(".key.pem") for p in _keys(folder)))
            raise StateError(
                f"{folder} has no key for replica {replica} (it has {others or 'none'}): set "
                f"replica=… to one of them, or make one at the central with python -m pww.central "
                f"add replicas={replica}"
            )
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise StateError(
                f"{path} has mode {mode:04o}, others may read it: chmod 600 it (and the folder "
                "700); if somebody may have read it, revoke the key"
            )
        key = read_key(_text(path).encode(), name=str(path), remedy=REMEDY)
        return cls(SiteKey(key, clock=clock), client_context(ca))


def write_bundle(folder: Path, *, ca: str, url: str, keys: Mapping[str, bytes]) -> None:
    """Writes or extends the bundle of the site `folder.name`; `keys` are private PEMs by replica
    name.
    """
    for made in (folder.parent, folder):
        made.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_durably(folder / CA, ca.encode(), private=True)
    for name, pem in keys.items():
        write_durably(folder / key_file(name), pem, private=True)
    info = {"site": folder.name, "url": url, "fingerprint": fingerprint(ca)}
    write_durably(folder / INFO, (json.dumps(info, indent=2) + "\n").encode(), private=True)


def key_file(name: str) -> str:
    """The file with the key of the replica `name` of the bundle's site."""
    return f"{name}.key.pem"


def _keys(folder: Path) -> list[Path]:
    return list(folder.glob("*.key.pem"))


def _text(path: Path) -> str:
    """A small text file.

    Raises:
        StateError: it is missing or not what it should be.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise StateError(f"{path} is too large for a part of a bundle: {REMEDY}")
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as why:
        raise StateError(
            f"{path} cannot be read ({why}): set central.bundle to the folder of this site's "
            f"bundle; {REMEDY}"
        ) from why
