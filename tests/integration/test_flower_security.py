"""The Flower port behind the door, over real TLS: who is let in, and which life of a replica is."""

import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import httpx
import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))

from gatehouse import Gatehouse

from pww.central import credentials
from pww.clock import ManualClock, SystemClock
from pww.config.schema import Transport
from pww.errors import CentralError, Refused
from pww.federation.fleet import FleetSite
from pww.federation.fleet_client import FleetClient, NotAdmitted
from pww.federation.gate import FLEET
from pww.federation.signing import Signer
from pww.federation.superlink import EmbeddedSuperLink
from pww.transport.bundle import Bundle
from pww.transport.serve import AsgiServer
from pww.transport.site_key import SiteKey

TRANSPORT = Transport(
    kind="inline",
    url="none",
    down="whole",
    limit_mb=8,
    timeout_s=5.0,
    poll_s=0.05,
    retry_first_s=0.05,
    retry_max_s=0.3,
)


@dataclass(frozen=True)
class Person:
    replica: str
    incarnation: str
    node_key: str


class Port:
    """One life of the Flower port."""

    def __init__(self, house: Gatehouse, folder: Path) -> None:
        self.house, self.door = house, house.door()
        self.link = EmbeddedSuperLink(folder, limit_mb=8, guard=self.door)
        self.server = AsgiServer(
            host="127.0.0.1", port=0, key="central.aggregator_port",
            tls=credentials.server_tls(house.folder),
        )  # fmt: skip
        self.server.start(self.link.app, name="flower")
        self.address = f"127.0.0.1:{self.server.port}"
        self._run = self.link.run()
        self._run.__enter__()
        self.sites: list[FleetSite] = []

    def life(self, replica: str, *, opens: bool = True) -> tuple[Person, Bundle]:
        """A process of the replica, with an open session."""
        bundle, incarnation = self.house.bundle(replica), uuid4().hex
        if opens:
            opened = self.door.open(bundle.key.open(replica, incarnation))
            bundle.key.authorization = f"Bearer {opened.token}"
        return Person(replica, incarnation, bundle.key.public_pem), bundle

    def site(self, bundle: Bundle) -> FleetSite:
        self.sites.append(
            FleetSite(
                self.address,
                TRANSPORT,
                signer=Signer(bundle.key),
                clock=SystemClock(),
                stop=threading.Event(),
                random=np.random.default_rng(0),
                heartbeat_s=10.0,
                tls=bundle.tls,
            )
        )
        return self.sites[-1]

    def send(self, person: Person, number: int) -> str:
        """An instruction to the person's node."""
        node = self.link.nodes()[person.node_key.encode()]
        content = RecordDict({"pww": ConfigRecord({"n": number})})
        message = self.link.grid.create_message(content, "train", node.node_id, "0")
        return self.link.grid.push_messages([message])[0]

    def close(self) -> None:
        for site in self.sites:
            site.close()
        self.server.stop()
        self._run.__exit__(None, None, None)
        self.link.close()


@pytest.fixture
def house(tmp_path: Path) -> Gatehouse:
    return Gatehouse.build(tmp_path, SystemClock())


@pytest.fixture
def port(house: Gatehouse, tmp_path: Path) -> Iterator[Port]:
    built = Port(house, tmp_path / "link")
    yield built
    built.close()


def test_a_registered_life_with_its_own_token_takes_part(port: Port) -> None:
    person, bundle = port.life("lumi/a")
    site = port.site(bundle)
    with pytest.raises(NotAdmitted):  # a session, but not registered yet
        site.receive()
    port.link.joined(person)
    assert site.receive() is None
    port.send(person, 5)
    got = site.receive()
    assert got is not None
    assert site.reply(got, RecordDict({"r": ConfigRecord({"n": 6})}))
    replies = port.link.grid.pull_messages([got.metadata.message_id])
    assert replies[0].content["r"]["n"] == 6


def test_without_the_right_token_every_call_ends_unread(port: Port) -> None:
    person, bundle = port.life("lumi/a")
    port.link.joined(person)
    other = port.life("lumi/b")[1]
    headers = {"flwr-timestamp": "x", "flwr-signature": "x", "content-type": "application/x"}
    good = bundle.key.authorization

    def status(path: str, authorization: str, pem: str) -> int:
        from base64 import b64encode

        more = {"authorization": authorization} if authorization else {}
        key = {"flwr-public-key": b64encode(pem.encode()).decode()} if pem else {}
        with httpx.Client(verify=bundle.tls) as client:
            url = f"https://{port.address}{path}"
            return client.post(url, headers={**headers, **more, **key}, content=b"x").status_code

    pem, stranger = bundle.key.public_pem, SiteKey.new(clock=SystemClock()).public_pem
    for path in sorted(FLEET):
        assert status(path, "", pem) == 401
        assert status(path, "Bearer x", pem) == 401
        assert status(path, other.key.authorization, pem) == 401
        assert status(path, other.key.authorization, other.key.public_pem) == 401  # unregistered
        assert status(path, good, stranger) == 401
        assert status(path, good, "") == 401
    operator = "Bearer " + (port.house.folder / "operator.token").read_text()
    assert status("/v1/fleet/pull-messages", operator, pem) == 401
    for path in ("/v1/fleet/register-node", "/v1/control/run", "/", "/docs"):
        assert status(path, good, pem) == 404
    with httpx.Client(verify=bundle.tls) as client:
        assert client.get(f"https://{port.address}/health").status_code == 200


def test_a_stranger_is_answered_before_his_body(port: Port) -> None:
    _, bundle = port.life("lumi/a")
    with (
        socket.create_connection(("127.0.0.1", port.server.port), timeout=10) as raw,
        bundle.tls.wrap_socket(raw, server_hostname="127.0.0.1") as tls,
    ):
        tls.sendall(
            b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: x\r\ncontent-length: 10000000\r\n\r\n"
        )
        assert tls.recv(100).startswith(b"HTTP/1.1 401")


def test_a_new_life_of_a_replica_takes_its_node_over_at_once(port: Port) -> None:
    old, old_bundle = port.life("lumi/a")
    port.link.joined(old)
    first = port.site(old_bundle)
    assert first.receive() is None
    sent = port.send(old, 1)
    node = port.link.nodes()[old.node_key.encode()].node_id

    new, new_bundle = port.life("lumi/a")
    assert new.node_key == old.node_key
    port.link.joined(new)
    # the old one, which still runs, gets nothing any more, and can say nothing
    with pytest.raises(NotAdmitted):
        first.receive()
    # the new one does not wait until the old one counts as offline, and has its node
    second = port.site(new_bundle)
    assert second.receive() is None or sent
    assert port.link.nodes()[new.node_key.encode()].node_id == node
    port.link.grid.cancel([sent])
    port.send(new, 2)
    got = None
    while got is None:
        got = second.receive()
    assert got.content["pww"]["n"] == 2
    with pytest.raises(NotAdmitted):
        first.receive()
    port.link.joined(new)  # told again: nothing changes
    assert second.reply(got, RecordDict({"r": ConfigRecord({"n": 6})}))


def test_a_restart_leaves_the_node_online(house: Gatehouse, tmp_path: Path) -> None:
    before = Port(house, tmp_path / "link")
    person, bundle = before.life("lumi/a")
    before.link.joined(person)
    assert before.site(bundle).receive() is None
    before.close()
    door = house.door()
    link = EmbeddedSuperLink(tmp_path / "link", limit_mb=8, guard=door)
    link.joined(person)
    with link.run():
        assert [node.status for node in link.nodes().values()] == ["online"]
    link.close()


def test_a_revoked_site_is_out_and_its_node_gone(port: Port, caplog) -> None:
    people = {name: port.life(name) for name in ("lumi/a", "lumi/b", "sara/a")}
    sites = {}
    for name, (person, bundle) in people.items():
        port.link.joined(person)
        sites[name] = port.site(bundle)
        assert sites[name].receive() is None
    port.link.sweep()
    assert len(port.link.nodes()) == 3
    credentials.revoke(port.house.folder, site="lumi")
    with pytest.raises(NotAdmitted):
        sites["lumi/a"].receive()
    port.link.sweep()
    assert [node.name for node in port.link.nodes().values()] == ["sara/a"]
    assert "lumi/b takes part no more: its key is not allowed" in caplog.text
    assert sites["sara/a"].receive() is None
    with pytest.raises(Refused, match=r"node key of lumi/a is not \(or no longer\) allowed"):
        port.link.joined(people["lumi/a"][0])
    stranger = SiteKey.new(clock=SystemClock()).public_pem
    with pytest.raises(Refused, match="not \\(or no longer\\) allowed") as why:
        port.link.joined(Person("sara/a", uuid4().hex, stranger))
    assert why.value.code == "unauthorised"
    with pytest.raises(Refused, match="allowed"):
        port.link.joined(Person("sara/b", uuid4().hex, people["sara/a"][0].node_key))


def test_a_list_that_cannot_be_read_is_waited_for(port: Port) -> None:
    person, bundle = port.life("lumi/a")
    port.link.joined(person)
    site, path = port.site(bundle), port.house.folder / "allowed.json"
    assert site.receive() is None
    text = path.read_text()
    path.write_text("{")
    port.link.sweep()
    assert len(port.link.nodes()) == 1
    client = FleetClient(port.address, Signer(bundle.key), timeout_s=5.0, tls=bundle.tls)
    from flwr.proto.fleet_pb2 import PullMessagesRequest

    from pww.transport.retry import TryAgain

    with pytest.raises(TryAgain, match="HTTP 503"):
        client.call("PullMessages", PullMessagesRequest())
    client.close()
    path.write_text(text)
    assert site.receive() is None


def test_another_central_is_not_believed(port: Port, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    wrong: ssl.SSLContext = Gatehouse.build(other, ManualClock()).bundle("lumi/a").tls
    _, bundle = port.life("lumi/a")
    site = port.site(Bundle(bundle.key, wrong))
    with pytest.raises(CentralError, match="not of the central that this bundle belongs to"):
        site.receive()
