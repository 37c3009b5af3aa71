"""Members of the server loop: one that cannot take part costs nobody else anything."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from pww.clock import ManualClock
from pww.federation.rounds import Rounds
from pww.federation.superlink import EmbeddedSuperLink
from pww.wire import Invitation, Offer, Seed, Verdict


@dataclass(frozen=True)
class Person:
    replica: str
    incarnation: str
    node_key: str


def person(replica: str, key: str = "") -> Person:
    made = ec.generate_private_key(ec.SECP384R1()).public_key()
    pem = made.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    return Person(replica, uuid4().hex, key or pem)


@dataclass
class Inbox:
    """Members and their invitations; nothing is handed in."""

    people: list[Person] = field(default_factory=list)
    ticks: int = 0
    round: int = 0

    def live(self) -> list[Person]:
        return self.people

    def needs_seed(self) -> bool:
        return False

    def invitation(
        self, replica: str, kind: str, *, holds: int = -1
    ) -> tuple[Invitation, Path | None]:
        told = Invitation(
            committed_windows=0,
            kind="phase", run="0" * 32, round=0, state_hash="", payload=None, verdicts=(),
            report=None,
        )  # fmt: skip
        return told, None

    def accept_seed(self, seed: Seed, payload: Path | None) -> None:
        raise AssertionError("nobody sends one")

    def accept_offer(self, offer: Offer, payload: Path | None) -> Verdict | None:
        raise AssertionError("nobody sends one")

    def tick(self) -> None:
        self.ticks += 1

    def finished(self) -> bool:
        return False


@pytest.fixture
def link(tmp_path: Path) -> Iterator[EmbeddedSuperLink]:
    built = EmbeddedSuperLink(tmp_path, limit_mb=1)
    with built.run():
        yield built
    built.close()


@pytest.fixture
def withdrawn(link: EmbeddedSuperLink) -> Person:
    """Somebody whose key Flower never takes again."""
    gone = person("s/gone")
    link.joined(gone)
    link.left(gone, for_good=True)
    return gone


def test_a_member_that_cannot_take_part_is_named_once_and_the_others_go_on(
    link: EmbeddedSuperLink, withdrawn: Person, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = person("s/bad", "no key at all"), person("s/good")
    inbox = Inbox([bad, withdrawn, good])
    rounds = Rounds(
        link, inbox, folder=tmp_path / "in", clock=ManualClock(), limit_mb=1, seed_ttl_s=1.0
    )
    with caplog.at_level(logging.ERROR, "pww.federation.rounds"):
        for _ in range(3):
            rounds.step()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert said[0].startswith("s/bad cannot take part: node_key is no PEM public key")
    assert said[1].startswith("s/gone cannot take part: the node key of s/gone was withdrawn")
    assert inbox.ticks == 3
    assert [node.name for node in link.nodes().values()] == ["s/good"], "admitted by the loop"
    node_id = next(iter(link.nodes().values())).node_id
    assert link.state.activate_node(node_id, 60.0)
    rounds.step()
    assert link.state.num_message_ins() == 1, "and invited"
    inbox.people = [good]
    rounds.step()
    inbox.people = [bad, good]
    with caplog.at_level(logging.ERROR, "pww.federation.rounds"):
        rounds.step()
    assert len(caplog.records) == 3, "it came back, so it is named again"
