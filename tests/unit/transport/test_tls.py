"""Real handshakes: whose certificate is believed, and what a person is told otherwise."""

import datetime
import socket
import ssl
import sys
import threading
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

sys.path.insert(0, str(Path(__file__).parents[2] / "programs"))

from cryptography.hazmat.primitives.asymmetric import ec
from gatehouse import Gatehouse

from pww.central import credentials
from pww.central.authority import make_certificate
from pww.clock import ManualClock, SystemClock
from pww.errors import StateError
from pww.transport.serve import AsgiServer
from pww.transport.site_key import private_pem, read_key
from pww.transport.tls import ServerTls, client_context, explain

APP = Starlette(routes=[Route("/", lambda request: PlainTextResponse("hello"))])
URL = "https://central.example:29510"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Gatehouse:
    return Gatehouse.build(tmp_path_factory.mktemp("house"), SystemClock())


@pytest.fixture
def serve():
    servers = []

    def start(tls: ServerTls | None, *, host: str = "127.0.0.1") -> int:
        server = AsgiServer(host=host, port=0, key="central.port", tls=tls)
        servers.append(server)
        server.start(APP, name="tls")
        return server.port

    yield start
    for server in servers:
        server.stop()


def ask(port: int, ca: str, *, host: str = "127.0.0.1", scheme: str = "https") -> str:
    with httpx.Client(verify=client_context(ca), trust_env=False) as client:
        return client.get(f"{scheme}://{host}:{port}/").text


def told(port: int, ca: str, **more: str) -> str:
    with pytest.raises(httpx.TransportError) as fault:
        ask(port, ca, **more)
    final = explain(fault.value, url=URL)
    assert final is not None
    assert str(final).startswith(URL)
    return str(final)


def reissued(house: Gatehouse, folder: Path, *, clock: ManualClock, years: int) -> ServerTls:
    """A certificate of the house's CA for other times."""
    folder.mkdir()
    remedy = "none"
    ca_key = read_key((house.folder / "ca.key.pem").read_bytes(), name="ca", remedy=remedy)
    key = ec.generate_private_key(ec.SECP384R1())
    pem = make_certificate(
        key, ca_pem=(house.folder / "ca.pem").read_text(), ca_key=ca_key, hosts=[], clock=clock,
        years=years,
    )  # fmt: skip
    (folder / "server.pem").write_text(pem)
    (folder / "server.key.pem").write_bytes(private_pem(key))
    return credentials.server_tls(folder)


def test_a_site_believes_the_ca_of_its_bundle(house: Gatehouse, serve) -> None:
    port = serve(credentials.server_tls(house.folder))
    ca = (house.folder / "bundles/lumi/ca.pem").read_text()
    for host in ("127.0.0.1", "localhost"):
        assert ask(port, ca, host=host) == "hello"


def test_another_ca_is_told_what_to_do(house: Gatehouse, serve, tmp_path: Path) -> None:
    other = Gatehouse.build(tmp_path, SystemClock())
    port = serve(credentials.server_tls(house.folder))
    text = told(port, (other.folder / "ca.pem").read_text())
    assert "not of the central that this bundle belongs to" in text
    assert "copy the bundle anew" in text
    # nor is a certificate that the whole world believes
    with httpx.Client(trust_env=False) as client, pytest.raises(httpx.ConnectError):
        client.get(f"https://127.0.0.1:{port}/")


def test_an_expired_certificate_is_told_so(house: Gatehouse, serve, tmp_path: Path) -> None:
    old = reissued(house, tmp_path / "old", clock=ManualClock(0.0), years=1)  # of 2001
    text = told(serve(old), (house.folder / "ca.pem").read_text())
    assert "has expired: make a new one there with python -m pww.central add host=NAME" in text


def test_a_certificate_of_tomorrow_is_told_so(house: Gatehouse, serve, tmp_path: Path) -> None:
    ahead = ManualClock(0.0)
    ahead.jump_wall(datetime.datetime.now().timestamp() - ahead.wall() + 10 * 86400.0)
    text = told(
        serve(reissued(house, tmp_path / "new", clock=ahead, years=1)),
        (house.folder / "ca.pem").read_text(),
    )
    assert "not valid yet: this machine's clock is behind" in text


def test_another_host_is_told_which(house: Gatehouse, serve) -> None:
    port = serve(credentials.server_tls(house.folder), host="127.0.0.2")
    text = told(port, (house.folder / "ca.pem").read_text(), host="127.0.0.2")
    assert "for another host" in text
    assert "127.0.0.2" in text
    assert "add host=" in text


def test_a_port_without_tls_is_told_so(house: Gatehouse, serve) -> None:
    text = told(serve(None), (house.folder / "ca.pem").read_text())
    assert "does not speak TLS: start the central with central.security.keys" in text


def test_old_tls_is_spoken_by_neither_side(house: Gatehouse, serve) -> None:
    ca = (house.folder / "ca.pem").read_text()
    assert client_context(ca).minimum_version == ssl.TLSVersion.TLSv1_2
    assert credentials.server_tls(house.folder).context().minimum_version == ssl.TLSVersion.TLSv1_2
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.load_verify_locations(cadata=ca)
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    port = serve(credentials.server_tls(house.folder))
    with (
        httpx.Client(verify=old, trust_env=False) as client,
        pytest.raises(httpx.ConnectError) as fault,
    ):
        client.get(f"https://127.0.0.1:{port}/")
    final = explain(fault.value, url=URL)
    assert "speaks no TLS that is new enough" in str(final)


def test_a_connection_that_breaks_in_the_handshake_may_pass(house: Gatehouse) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def cut() -> None:
            connection, _ = listener.accept()
            connection.recv(10)
            connection.close()

        thread = threading.Thread(target=cut)
        thread.start()
        with pytest.raises(httpx.TransportError) as fault:
            ask(listener.getsockname()[1], (house.folder / "ca.pem").read_text())
        thread.join(5.0)
    assert explain(fault.value, url=URL) is None
    assert explain(httpx.ConnectError("refused"), url=URL) is None


def test_plain_http_does_not_reach_a_port_with_tls(house: Gatehouse, serve) -> None:
    port = serve(credentials.server_tls(house.folder))
    with pytest.raises(httpx.TransportError):
        ask(port, (house.folder / "ca.pem").read_text(), scheme="http")


def test_a_peer_that_stays_connected_does_not_delay_the_end(house: Gatehouse) -> None:
    """TLS says goodbye on both sides; one that never answers must not be waited for."""
    server = AsgiServer(
        host="127.0.0.1", port=0, key="central.port", tls=credentials.server_tls(house.folder)
    )
    server.start(APP, name="stays")
    context = client_context((house.folder / "ca.pem").read_text())
    with (
        socket.create_connection(("127.0.0.1", server.port)) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as tls,
    ):
        tls.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert tls.recv(12) == b"HTTP/1.1 200"
        server.stop()
        assert not [thread for thread in threading.enumerate() if thread.name == "stays"]


def test_files_that_do_not_belong_together(house: Gatehouse, tmp_path: Path) -> None:
    other = Gatehouse.build(tmp_path, SystemClock())
    mixed = ServerTls(house.folder / "server.pem", other.folder / "server.key.pem")
    with pytest.raises(StateError, match=r"cannot be used for TLS.*central\.security\.keys"):
        AsgiServer(host="127.0.0.1", port=0, key="central.port", tls=mixed)
    with pytest.raises(StateError, match=r"ca\.pem of the bundle is no certificate"):
        client_context("nothing")
