"""What init, add and revoke leave on disk, judged by cryptography's own verifier and by stat."""

import datetime
import ipaddress
import json
import os
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from pww.central import credentials, keys_command
from pww.central.allowed import Allowed, read_allowed
from pww.central.authority import hosts_of
from pww.clock import ManualClock, SystemClock
from pww.config import paths
from pww.errors import ConfigError, InUse, StateError
from pww.folder import owned
from pww.transport.bundle import Bundle

REPLICAS = ["lumi/a", "lumi/b", "sara/a"]


def make(folder: Path, **changes) -> credentials.Made:
    words = {"hosts": ["central.example", "10.0.0.1"], "replicas": REPLICAS, "port": 29510}
    return credentials.init(folder, **(words | {"clock": SystemClock()} | changes))


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def verify(folder: Path, host: str, *, when: datetime.datetime | None = None) -> None:
    """The chain as an independent verifier (webpki's rules) sees it."""
    store = Store([certificate(folder / "ca.pem")])
    when = when or datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    try:
        name = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        name = x509.DNSName(host)
    verifier = PolicyBuilder().store(store).time(when).build_server_verifier(name)
    verifier.verify(certificate(folder / "server.pem"), [])


def test_the_certificate_is_good_for_its_hosts_and_loopback_and_for_ten_years(
    tmp_path: Path,
) -> None:
    made = make(tmp_path)
    assert made.hosts == ("central.example", "10.0.0.1")
    for host in ("central.example", "10.0.0.1", "localhost", "127.0.0.1", "::1"):
        verify(tmp_path, host)
    for host in ("example", "other.example", "10.0.0.2"):
        with pytest.raises(VerificationError):
            verify(tmp_path, host)
    now = datetime.datetime.now()
    verify(tmp_path, "localhost", when=now + datetime.timedelta(days=3650))
    with pytest.raises(VerificationError):
        verify(tmp_path, "localhost", when=now + datetime.timedelta(days=3660))
    ca = certificate(tmp_path / "ca.pem")
    assert isinstance(ca.public_key().curve, ec.SECP384R1)
    assert ca.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0


def test_every_file_is_its_owners_only_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make(tmp_path / "keys")
    finally:
        os.umask(before)
    for path in [tmp_path / "keys", *(tmp_path / "keys").rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
    assert not list(tmp_path.rglob("*.part"))


def test_a_bundle_has_the_keys_of_its_site_and_the_central_their_public_halves(
    tmp_path: Path,
) -> None:
    made = make(tmp_path)
    assert [folder.name for folder in made.bundles] == ["lumi", "sara"]
    lumi = tmp_path / "bundles" / "lumi"
    assert sorted(p.name for p in lumi.iterdir()) == [
        "a.key.pem", "b.key.pem", "ca.pem", "central.json",
    ]  # fmt: skip
    info = json.loads((lumi / "central.json").read_text())
    assert info["url"] == "https://central.example:29510"
    assert info["site"] == "lumi"
    content = read_allowed(tmp_path)
    assert sorted(content.replicas) == REPLICAS
    assert content.revoked == ()
    for replica in REPLICAS:
        bundle = Bundle.read(
            tmp_path / "bundles" / replica.split("/")[0], replica=replica, clock=SystemClock()
        )
        assert bundle.key.public_pem == content.replicas[replica]
    assert len(set(content.replicas.values())) == 3
    at_the_central = [p for p in tmp_path.iterdir() if p.is_file()]
    private = [p.name for p in at_the_central if b"PRIVATE" in p.read_bytes()]
    assert sorted(private) == ["ca.key.pem", "server.key.pem"]
    key = load_pem_private_key((lumi / "a.key.pem").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert isinstance(key.curve, ec.SECP384R1)


@pytest.mark.parametrize(
    ("hosts", "url"),
    [([], "https://127.0.0.1:1"), (["::1"], "https://[::1]:1"), (["A.b"], "https://a.b:1")],
)
def test_the_url_of_a_bundle(tmp_path: Path, hosts: list[str], url: str) -> None:
    make(tmp_path, hosts=hosts, port=1)
    assert json.loads((tmp_path / "bundles/lumi/central.json").read_text())["url"] == url


def test_an_existing_ca_is_never_overwritten(tmp_path: Path) -> None:
    make(tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(StateError, match="has a CA already, and a new one would lock out every"):
        make(tmp_path)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_an_init_that_was_killed_is_repeated(tmp_path: Path, monkeypatch) -> None:
    write = credentials.write_durably

    def dies(path: Path, data: bytes, *, private: bool = False) -> None:
        if path.name == "ca.pem":
            raise OSError(28, "No space left on device")
        write(path, data, private=private)

    with monkeypatch.context() as patch:
        patch.setattr(credentials, "write_durably", dies)
        with pytest.raises(StateError, match=r"cannot be written \(.*No space.*repeat the comm"):
            make(tmp_path)
    assert not (tmp_path / "ca.pem").exists()
    make(tmp_path)
    verify(tmp_path, "central.example")


@pytest.mark.parametrize(
    "name",
    ["../x", "lumi/../x", "/etc/a", "lumi", "lumi/a/b", "lumi/", "/a", "Lumi/a", "lumi/a\nb", "",
     "lumi/" + "a" * 33, ".lumi/a", "lumi/a b", "lumi\\a/b", "l\u00fcmi/a"],
)  # fmt: skip
def test_a_name_that_would_be_a_path_is_refused_before_anything_is_written(
    tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "keys"
    with pytest.raises(ConfigError, match=r"(?s)replicas=.*: SITE/REPLICA, each 1 to 32"):
        make(folder, replicas=["lumi/a", name])
    assert not folder.exists()
    with pytest.raises(ConfigError, match="SITE/REPLICA"):
        credentials.revoke(folder, replica=name or "x")
    with pytest.raises(ConfigError, match=r"site=.*: 1 to 32 of a-z"):
        credentials.revoke(folder, site="../x")


@pytest.mark.parametrize("host", ["http://x", "x:1", "a b", "-x", "1.2.3", "x/y", "*.example", "ü"])
def test_a_host_that_is_none_is_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make(tmp_path / "keys", hosts=["good.example", host])
    assert refused.value.faults == (
        f"host={host}: a DNS name or an IP address, without scheme and port",
    )
    assert not (tmp_path / "keys").exists()


def test_add_makes_more_keys_and_keeps_the_others(tmp_path: Path) -> None:
    make(tmp_path)
    before = read_allowed(tmp_path).replicas
    server = (tmp_path / "server.pem").read_bytes()
    made = credentials.add(
        tmp_path, hosts=[], replicas=["lumi/c", "new/a"], port=5, clock=SystemClock()
    )
    assert [folder.name for folder in made.bundles] == ["lumi", "new"]
    after = read_allowed(tmp_path).replicas
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {"lumi/c", "new/a"}
    assert (tmp_path / "server.pem").read_bytes() == server
    assert (tmp_path / "bundles/lumi/a.key.pem").exists()
    info = json.loads((tmp_path / "bundles/new/central.json").read_text())
    assert info["url"] == "https://central.example:5"
    with pytest.raises(
        ConfigError, match="replicas=lumi/a: has a key; revoke replica=lumi/a first"
    ):
        credentials.add(tmp_path, hosts=[], replicas=["lumi/a", "x/y"], port=5, clock=SystemClock())
    assert read_allowed(tmp_path).replicas == after


def test_add_host_makes_another_certificate_for_the_old_hosts_too(tmp_path: Path) -> None:
    make(tmp_path)
    ca = (tmp_path / "ca.pem").read_bytes()
    credentials.add(tmp_path, hosts=["more.example"], replicas=[], port=5, clock=SystemClock())
    for host in ("central.example", "more.example", "10.0.0.1", "localhost"):
        verify(tmp_path, host)
    assert hosts_of((tmp_path / "server.pem").read_text()) == (
        "central.example", "10.0.0.1", "more.example",
    )  # fmt: skip
    assert (tmp_path / "ca.pem").read_bytes() == ca
    credentials.server_tls(tmp_path).context()  # the two files belong together


def test_a_revoked_key_never_comes_back_and_add_makes_another(tmp_path: Path) -> None:
    make(tmp_path)
    old = read_allowed(tmp_path).replicas["lumi/a"]
    assert credentials.revoke(tmp_path, replica="lumi/a") == ("lumi/a",)
    content = read_allowed(tmp_path)
    assert sorted(content.replicas) == ["lumi/b", "sara/a"]
    assert len(content.revoked) == 1
    assert not (tmp_path / "bundles/lumi/a.key.pem").exists()
    credentials.add(tmp_path, hosts=[], replicas=["lumi/a"], port=5, clock=SystemClock())
    assert read_allowed(tmp_path).replicas["lumi/a"] != old
    assert credentials.revoke(tmp_path, site="lumi") == ("lumi/a", "lumi/b")
    content = read_allowed(tmp_path)
    assert list(content.replicas) == ["sara/a"]
    assert len(content.revoked) == 3
    with pytest.raises(ConfigError, match="site=lumi: has no key here; those with one: sara/a"):
        credentials.revoke(tmp_path, site="lumi")
    credentials.revoke(tmp_path, replica="sara/a")
    with pytest.raises(ConfigError, match="replica=sara/a: has no key here; those with one: none"):
        credentials.revoke(tmp_path, replica="sara/a")
    # put back by hand, it is still refused
    text = json.loads((tmp_path / "allowed.json").read_text())
    text["replicas"]["lumi/a"] = old
    (tmp_path / "allowed.json").write_text(json.dumps(text))
    with pytest.raises(StateError, match="a key that is there twice or was revoked"):
        read_allowed(tmp_path)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "1 faults in it"),
        ('{"replicas": {"../x": "k"}}', "faults in it"),
        ('{"replicas": {}, "more": 1}', "faults in it"),
        ('{"replicas": {"a/a": "k", "a/b": "k"}}', "a key that is there twice"),
    ],
)
def test_a_damaged_list_lets_nobody_in(tmp_path: Path, text: str, why: str) -> None:
    make(tmp_path)
    allowed = Allowed(tmp_path)
    assert len(allowed.now().by_replica) == 3
    (tmp_path / "allowed.json").write_text(text)
    for _ in range(2):
        with pytest.raises(StateError, match=why):
            allowed.now()
    (tmp_path / "allowed.json").unlink()
    with pytest.raises(StateError, match="nobody is let in until it is there again"):
        allowed.now()
    with pytest.raises(StateError, match=r"allowed\.json cannot be used"):
        read_allowed(tmp_path)


def test_a_folder_that_init_did_not_make(tmp_path: Path) -> None:
    typo = tmp_path / "typo"
    with pytest.raises(StateError, match="holds no keys of a central: give the folder that"):
        credentials.add(typo, hosts=[], replicas=["a/a"], port=1, clock=SystemClock())
    with pytest.raises(StateError, match="holds no keys of a central"):
        credentials.revoke(typo, site="lumi")
    assert not typo.exists(), "nothing of it was made"
    with pytest.raises(StateError, match="cannot be used for TLS"):
        credentials.server_tls(tmp_path).context()
    make(tmp_path)
    (tmp_path / "allowed.json").rename(tmp_path / "away")
    with pytest.raises(StateError, match=r"allowed\.json cannot be used"):
        credentials.revoke(tmp_path, site="lumi")
    (tmp_path / "away").rename(tmp_path / "allowed.json")
    (tmp_path / "ca.key.pem").write_text("nothing")
    with pytest.raises(StateError, match=r"ca\.key\.pem holds no EC P-384 private key: give the"):
        credentials.add(tmp_path, hosts=["x"], replicas=[], port=1, clock=SystemClock())


def test_two_commands_at_once(tmp_path: Path) -> None:
    make(tmp_path)
    with (
        owned(tmp_path, remedy="x"),
        pytest.raises(InUse, match="another init, add or revoke works on it"),
    ):
        credentials.revoke(tmp_path, site="lumi")


def test_the_dates_follow_the_clock(tmp_path: Path) -> None:
    make(tmp_path, clock=ManualClock(0.0))  # 2001
    with pytest.raises(VerificationError):
        verify(tmp_path, "localhost")
    verify(tmp_path, "localhost", when=datetime.datetime(2005, 1, 1))


# ----------------------------------------------------------------------------------- the command


@pytest.fixture
def project(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setattr(paths, "PROJECT", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_words(project: Path, capsys) -> None:
    words = ["init", "host=central.example", "replicas=lumi/a,sara/a", "port=4"]
    assert keys_command.run(words) == 0
    told = capsys.readouterr().out
    assert "bundle       outputs/central-keys/bundles/lumi" in told
    assert "pww.central central.host=0.0.0.0 central.security.keys=outputs/central-keys" in told
    assert "central.url=https://central.example:4 central.bundle=" in told
    assert (
        keys_command.run(["add", "replicas=lumi/b", "host=x", "folder=outputs/central-keys"]) == 0
    )
    told = capsys.readouterr().out
    assert "start the central again" in told
    assert "29510" in told  # conf's port
    assert keys_command.run(["revoke", "site=lumi"]) == 0
    assert "revoked lumi/a, lumi/b; a running central refuses them" in capsys.readouterr().out
    assert keys_command.run(["init", "replicas=a/a"]) == 1
    assert "has a CA already" in capsys.readouterr().err
    secret = (project / "outputs/central-keys/operator.token").read_text()
    assert secret not in told
    assert keys_command.run(["revoke", "--help"]) == 0
    assert "obeyed at once" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["init", "hosts=x"], "hosts=x: init takes host=…, replicas=…, folder=…, port=…"),
        (["init", "host"], "host: init takes host=…, replicas=…, folder=…, port=…"),
        (["init", "host="], "host=: init takes host=…, replicas=…, folder=…, port=…"),
        (["init", "host=a", "host=b"], "host=b: given twice; separate several values by commas"),
        (["init", "port=0"], "port=0: 1 to 65535"),
        (["init", "port=x"], "port=x: 1 to 65535"),
        (["add"], "add: give replicas=SITE/NAME,… or host=NAME,…"),
        (["revoke"], "revoke: give either replica=SITE/NAME or site=SITE"),
        (["revoke", "site=a", "replica=a/a"], "revoke: give either replica=SITE/NAME or site=SITE"),
        (["revoke", "port=1"], "port=1: revoke takes replica=…, site=…, folder=…"),
    ],
)
def test_a_wrong_word_is_named(project: Path, capsys, words: list[str], told: str) -> None:
    assert keys_command.run(words) == 2
    assert capsys.readouterr().err.strip() == told
    assert not (project / "outputs").exists()
