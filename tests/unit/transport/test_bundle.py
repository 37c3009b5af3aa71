"""A bundle as a site reads it: its own keys only, and every damage named with what to do."""

import json
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

sys.path.insert(0, str(Path(__file__).parents[2] / "programs"))

from gatehouse import Gatehouse

from pww.clock import ManualClock
from pww.errors import StateError
from pww.transport.bundle import Bundle, write_bundle
from pww.transport.site_key import SiteKey, fingerprint, private_pem, public_pem, read_key


@pytest.fixture
def house(tmp_path: Path) -> Gatehouse:
    return Gatehouse.build(tmp_path, ManualClock(5.0))


def test_it_gives_the_replicas_key_and_trusts_the_ca(house: Gatehouse) -> None:
    a, b = house.bundle("lumi/a"), house.bundle("lumi/b")
    assert a.key.public_pem != b.key.public_pem
    assert [c["subject"] for c in a.tls.get_ca_certs()] == [((("commonName", "pww central CA"),),)]
    assert a.key.theirs.now_s() == house.clock.wall()


def test_a_replica_without_a_key_is_told_which_there_are(house: Gatehouse) -> None:
    with pytest.raises(StateError, match=r"no key for replica lumi/c \(it has a, b\): set replica"):
        house.bundle("lumi/c")
    folder = house.folder / "bundles/lumi"
    with pytest.raises(StateError, match="is the bundle of site lumi, this is replica sara/a: giv"):
        Bundle.read(folder, replica="sara/a", clock=house.clock)
    for name in ("a", "b"):
        (folder / f"{name}.key.pem").unlink()
    with pytest.raises(StateError, match=r"\(it has none\)"):
        house.bundle("lumi/a")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_key_that_others_can_read_is_refused(house: Gatehouse, mode: int) -> None:
    (house.folder / "bundles/lumi/a.key.pem").chmod(mode)
    with pytest.raises(StateError, match=rf"has mode {mode:04o}, others may read it: chmod 600"):
        house.bundle("lumi/a")


def test_what_is_missing_or_damaged_is_named(house: Gatehouse, tmp_path: Path) -> None:
    folder = house.folder / "bundles/lumi"
    with pytest.raises(StateError, match=r"ca\.pem cannot be read .*set central\.bundle to"):
        Bundle.read(tmp_path / "nothing", replica="lumi/a", clock=house.clock)
    good = {path: path.read_bytes() for path in folder.iterdir()}
    ca = good[folder / "ca.pem"]
    other = (house.folder / "server.pem").read_bytes()
    info = json.loads(good[folder / "central.json"])
    for name, content, text in (
        ("ca.pem", other, r"has fingerprint \w{16}…, central\.json says \w{16}…: copy the bundle"),
        ("ca.pem", b"\xff", r"ca\.pem cannot be read"),
        ("ca.pem", ca * 200, "too large for a part of a bundle"),
        ("central.json", b"{}", r"central\.json cannot be read: copy"),
        ("central.json", b"[]", r"central\.json cannot be read: copy"),
        ("central.json", b"{", r"central\.json cannot be read: copy"),
        ("central.json", json.dumps(info | {"fingerprint": 3}).encode(), r"says 3…"),
        ("a.key.pem", b"nothing", "holds no EC P-384 private key: copy the bundle anew"),
        ("a.key.pem", b"", "holds no EC P-384 private key"),
    ):
        (folder / name).write_bytes(content)
        with pytest.raises(StateError, match=text):
            house.bundle("lumi/a")
        (folder / name).write_bytes(good[folder / name])
    house.bundle("lumi/a")


def test_a_ca_that_is_none(tmp_path: Path) -> None:
    write_bundle(tmp_path / "s", ca="nothing", url="u", keys={})
    key = ec.generate_private_key(ec.SECP384R1())
    write_bundle(tmp_path / "s", ca="nothing", url="u", keys={"a": private_pem(key)})
    with pytest.raises(StateError, match=r"ca\.pem of the bundle is no certificate"):
        Bundle.read(tmp_path / "s", replica="s/a", clock=ManualClock())


def test_a_key_is_on_the_curve_p384(tmp_path: Path) -> None:
    good = ec.generate_private_key(ec.SECP384R1())
    read = read_key(private_pem(good), name="k", remedy="r")
    assert public_pem(read) == public_pem(good)
    weak = private_pem(ec.generate_private_key(ec.SECP256R1()))
    with pytest.raises(StateError, match=r"^k holds no EC P-384 private key: r$"):
        read_key(weak, name="k", remedy="r")


def test_one_text_for_one_key(house: Gatehouse) -> None:
    """Flower compares the same text, so a fingerprint stands for a node too."""
    from flwr.supercore.primitives.asymmetric import bytes_to_public_key, public_key_to_bytes

    pem = SiteKey.new(clock=ManualClock()).public_pem
    assert public_key_to_bytes(bytes_to_public_key(pem.encode())).decode() == pem
    assert len({fingerprint(pem), fingerprint(pem + "\n")}) == 2
