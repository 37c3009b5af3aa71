"""A site whose nodes get out through an HTTP forward proxy only: each client that it has goes so.

The central and the store have a name that only the proxy can find; over TLS, to which the proxy
makes a tunnel. The blob store's client is in `test_blob_proxies`.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))

from bad_http import BadHttp
from blob_desk import QUICK, made
from gatehouse import Gatehouse
from s3_server import options, s3_server

from pww.central import credentials
from pww.clock import SystemClock
from pww.config.schema import Transport
from pww.errors import CentralError
from pww.federation.fleet import FleetSite
from pww.federation.signing import Signer
from pww.federation.superlink import EmbeddedSuperLink
from pww.replica.coordinator_client import HttpCoordinator
from pww.transport.blob import BlobCarrier
from pww.transport.fsspec_carrier import FsspecCarrier
from pww.transport.serve import AsgiServer
from pww.transport.site_key import Opened
from pww.wire import Done, Leave, PayloadInfo

PASSWORD = "bmFtZTp3b3Jk"  # name:word
HOST = "central.example"
NOT_THROUGH = (
    r"the proxy does not let this machine through \(.*407.*\): give it credentials in HTTPS_PROXY"
)
TRANSPORT = Transport(
    kind="inline", url="none", down="whole", limit_mb=8, timeout_s=10.0, poll_s=0.05,
    retry_first_s=0.01, retry_max_s=0.05,
)  # fmt: skip


@pytest.fixture
def house(tmp_path: Path) -> Gatehouse:
    return Gatehouse.build(tmp_path, SystemClock())


@pytest.fixture(autouse=True)
def no_other_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def through(proxy: BadHttp, monkeypatch: pytest.MonkeyPatch, *, word: str = "word") -> None:
    """The environment of a site behind `proxy`."""
    for scheme in ("HTTP", "HTTPS"):
        monkeypatch.setenv(f"{scheme}_PROXY", f"http://name:{word}@127.0.0.1:{proxy.port}")


@contextmanager
def serving(app: object, house: Gatehouse) -> Iterator[int]:
    """The port of an app that has the central's keys."""
    tls = credentials.server_tls(house.folder)
    server = AsgiServer(host="127.0.0.1", port=0, key="central.port", tls=tls)
    server.start(app, name="behind-the-proxy")
    yield server.port
    server.stop()


async def coordinator(scope, receive, send) -> None:  # type: ignore[no-untyped-def]
    """Opens a session for everybody, and has nothing to say."""
    body = Opened(token="t", ttl_s=60.0) if scope["path"] == "/v1/open" else Done()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body.model_dump_json().encode()})


def test_leases(house: Gatehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    leave = Leave(replica="lumi/a", incarnation="1" * 32)
    with (
        serving(coordinator, house) as port,
        BadHttp(port, password=PASSWORD) as proxy,
    ):
        for word in ("word", "wrong"):
            through(proxy, monkeypatch, word=word)
            client = HttpCoordinator(
                f"https://{HOST}:29510", TRANSPORT, clock=SystemClock(), stop=threading.Event(),
                random=np.random.default_rng(0), bundle=house.bundle("lumi/a"),
            )  # fmt: skip
            if word == "word":
                assert client.leave(leave) == Done()
                assert client.num_retries == 0
            else:
                with pytest.raises(CentralError, match=NOT_THROUGH):
                    client.leave(leave)
                assert client.num_retries == 0
            client.close()
        assert set(proxy.connects) == {f"{HOST}:29510"}


@dataclass(frozen=True)
class Person:
    replica: str
    incarnation: str
    node_key: str


def test_rounds(house: Gatehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    door, bundle = house.door(), house.bundle("lumi/a")
    link = EmbeddedSuperLink(tmp_path / "link", limit_mb=8, guard=door)
    bundle.key.authorization = f"Bearer {door.open(bundle.key.open('lumi/a', '1' * 32)).token}"
    person = Person("lumi/a", "1" * 32, bundle.key.public_pem)
    with (
        serving(link.app, house) as port,
        BadHttp(port, password=PASSWORD) as proxy,
        link.run(),
    ):
        through(proxy, monkeypatch)
        site = FleetSite(
            f"{HOST}:29511", TRANSPORT, signer=Signer(bundle.key), clock=SystemClock(),
            stop=threading.Event(), random=np.random.default_rng(0), tls=bundle.tls,
        )  # fmt: skip
        link.joined(person)
        assert site.receive() is None
        node = link.nodes()[person.node_key.encode()]
        content = RecordDict({"pww": ConfigRecord({"n": 5})})
        link.grid.push_messages([link.grid.create_message(content, "train", node.node_id, "0")])
        got = site.receive()
        assert got is not None
        assert site.reply(got, RecordDict({"r": ConfigRecord({"n": 6})}))
        (reply,) = link.grid.pull_messages([got.metadata.message_id])
        assert reply.content["r"]["n"] == 6
        assert site.num_retries == 0
        site.close()
        assert set(proxy.connects) == {f"{HOST}:29511"}
    link.close()


@pytest.mark.parametrize("tls", [False, True])
def test_no_client_waits_for_a_proxy_that_wants_credentials(
    tls: bool, house: Gatehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each says at once what to do, for http and for a tunnel."""
    bundle = house.bundle("lumi/a")
    scheme = "https" if tls else "http"
    with BadHttp(9, password=PASSWORD) as proxy:
        through(proxy, monkeypatch, word="wrong")
        leases = HttpCoordinator(
            f"{scheme}://{HOST}:29510", TRANSPORT, clock=SystemClock(), stop=threading.Event(),
            random=np.random.default_rng(0),
        )  # fmt: skip
        rounds = FleetSite(
            f"{HOST}:29511", TRANSPORT, signer=Signer(bundle.key), clock=SystemClock(),
            stop=threading.Event(), random=np.random.default_rng(0),
            tls=bundle.tls if tls else None,
        )  # fmt: skip
        blobs = BlobCarrier(
            f"{scheme}://{HOST}:29512", clock=SystemClock(), stop=threading.Event(),
            random=np.random.default_rng(0), tls=bundle.tls,
        )  # fmt: skip
        info = PayloadInfo(codec="fp32", size_bytes=1, digest="0" * 64)
        for call in (
            lambda: leases.leave(Leave(replica="lumi/a", incarnation="1" * 32)),
            rounds.receive,
            lambda: blobs.get(info, house.folder / "back"),
        ):
            with pytest.raises(CentralError, match=NOT_THROUGH):
                call()
        assert leases.num_retries == rounds.num_retries == blobs.transfers().retries == 0
        leases.close()
        rounds.close()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_object_store(
    scheme: str, house: Gatehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "s3"
    (folder / "bucket").mkdir(parents=True)
    path, info = made(tmp_path, 300)
    words = options(f"{scheme}://{HOST}")
    if scheme == "https":
        words["client_kwargs"] |= {"verify": str(house.folder / credentials.CA)}  # type: ignore[operator]
    # no name of the certificate has the bucket in it
    words["config_kwargs"] = {"s3": {"addressing_style": "path"}}
    tls = credentials.server_tls(house.folder) if scheme == "https" else None
    with (
        s3_server(folder, tls=tls) as url,
        BadHttp(int(url.rpartition(":")[2]), password=PASSWORD) as proxy,
    ):
        through(proxy, monkeypatch)
        client = FsspecCarrier(
            f"s3://bucket/{scheme}", clock=SystemClock(), stop=threading.Event(),
            random=np.random.default_rng(0), tuning=QUICK, options=words,
        )  # fmt: skip
        client.put(path, info)
        assert (folder / "bucket" / scheme / info.digest).read_bytes() == path.read_bytes()
        client.get(info, tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == path.read_bytes()
        assert client.transfers().retries == 0
        if scheme == "https":
            assert set(proxy.connects) == {f"{HOST}:443"}
        else:
            assert all(r.target.startswith(f"http://{HOST}/bucket") for r in proxy.requests)
            assert proxy.requests
