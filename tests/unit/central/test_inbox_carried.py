"""Payloads that are not beside a message: nobody waits for them, nobody loses by another's."""

import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "programs"))

from inbox_desk import Central, Site
from lone_replica import SHAPES

from pww.central.blobs import BlobStore
from pww.central.carried import Blobs
from pww.central.objects import Objects
from pww.clock import SystemClock
from pww.errors import NotYet, PayloadError
from pww.transport.fsspec_carrier import FsspecCarrier
from pww.transport.payload import write_theta
from pww.wire import Offer, PayloadInfo, Seed, model_digest

LIMIT_S = 60.0


class Slow(FsspecCarrier):
    """A shared folder behind a link that stalls until `gate` is set."""

    gate = threading.Event()

    def get(self, info: PayloadInfo, path: Path) -> None:
        assert self.gate.wait(LIMIT_S)
        super().get(info, path)

    def put(self, path: Path, info: PayloadInfo) -> None:
        assert self.gate.wait(LIMIT_S)
        super().put(path, info)


def carrier(folder: Path, kind: type[FsspecCarrier] = FsspecCarrier) -> FsspecCarrier:
    return kind(
        f"file://{folder}/there", clock=SystemClock(), stop=threading.Event(),
        random=np.random.default_rng(0),
    )  # fmt: skip


def settled(central: Central) -> None:
    assert central.carried.wait(LIMIT_S)


def in_hand(central: Central, offer: Offer) -> None:
    """Hands a carried delta in until it has been fetched, as the server loop does."""
    until_s = SystemClock().monotonic() + LIMIT_S
    while SystemClock().monotonic() < until_s:
        try:
            assert central.inbox.accept_offer(offer, None) is None
            return
        except NotYet:
            SystemClock().wait(threading.Event(), 0.005)
    raise AssertionError("it never came")


def of(central: Central, delta: str) -> str:
    """What the books say of a delta."""
    rows = central.ledger.rows("SELECT outcome FROM deltas WHERE delta = ?", delta)
    return "unknown" if not rows else str(rows[0][0] or "staged")


def test_a_store_that_stalls_delays_nobody_else(tmp_path: Path) -> None:
    """Theta cannot be put, a delta cannot be fetched; leases, rounds and others go on."""
    slow = carrier(tmp_path, Slow)
    Slow.gate.clear()
    central = Central(
        tmp_path,
        carried=lambda: Objects(
            slow, tmp_path / "here", clock=SystemClock(), stop=threading.Event()
        ),
    )
    try:
        a, b = central.join("local/a"), central.join("local/b")
        a.seed()
        with pytest.raises(NotYet, match="theta of round 0 is on its way to where sites fetch it"):
            central.inbox.invitation("local/a", "phase")
        Slow.gate.set()
        settled(central)
        assert central.inbox.invitation("local/a", "phase")[0].round == 0
        Slow.gate.clear()
        offer, path = a.offer()
        carrier(tmp_path).put(path, offer.payload)
        carried = offer.model_copy(update={"carried": True})
        with pytest.raises(NotYet, match="is being fetched"):
            central.inbox.accept_offer(carried, None)
        assert b.deliver() is None, "what is beside its message is taken at once"
        lease = b.acquire().lease
        central.clock.advance(1e3)
        central.inbox.tick()
        central.inbox.tick()
        assert central.books.round == 1, "nobody waits for the slowest"
        with pytest.raises(NotYet, match="theta of round 1"):
            central.inbox.invitation("local/b", "phase")
        Slow.gate.set()
        in_hand(central, carried)
        settled(central)
        assert central.inbox.invitation("local/b", "phase")[0].round == 1
        b.deliver(lease=lease)
        central.clock.advance(1e3)
        central.inbox.tick()
        central.inbox.tick()
        assert of(central, offer.delta) == "merged"
        settled(central)
        there = {file.name for file in (tmp_path / "there").iterdir()}
        assert offer.payload.digest not in there
        outer = central.rows("outer")
        assert [row["retries"] for row in outer] == [0, 0]
    finally:
        Slow.gate.set()
        central.close()


def test_retries_of_the_central_are_in_its_rows_and_its_metrics(tmp_path: Path) -> None:
    class Repeats(Blobs):
        retries = 0

    store = BlobStore(
        tmp_path / "blobs", quota_bytes=1 << 20, replica_bytes=1 << 20, clock=SystemClock()
    )
    central = Central(tmp_path, carried=lambda: Repeats(store))
    try:
        a = central.join("local/a")
        a.seed()
        for repeats in (3, 3, 10):
            central.carried.retries = repeats
            a.deliver()
            central.inbox.tick()
        assert [row["retries"] for row in central.rows("outer")] == [3, 0, 7]
        assert central.books.status()["retries"] == 10
    finally:
        central.close()
        store.close()


# ------------------------------------------------------------------------------------- blobs


class House:
    """A central with a blob store that outlives its lives."""

    def __init__(self, folder: Path) -> None:
        self.store = BlobStore(
            folder / "blobs", quota_bytes=1 << 20, replica_bytes=1 << 20, clock=SystemClock()
        )
        self.central = Central(folder, carried=lambda: Blobs(self.store))

    def bring(self, path: Path, info: PayloadInfo, *, replica: str) -> bool:
        """What a site's carrier does; False if it was there."""
        state = self.store.begin(info.digest, info.size_bytes, replica=replica)
        if state.complete:
            return False
        upload = self.store.upload(info.digest, info.size_bytes, replica=replica)
        data = path.read_bytes()
        writer = upload.writer(0)
        assert writer is not None
        writer.write([data])
        writer.finish()
        self.store.commit(info.digest, info.size_bytes, replica=replica)
        return True

    def names(self) -> list[str]:
        return [path.name for path in (self.store._objects).iterdir()]


@pytest.fixture
def house(tmp_path: Path):
    built = House(tmp_path)
    yield built
    built.central.close()
    built.store.close()


def carried_offer(house: House, site: Site, **changes) -> tuple[Offer, Path]:
    offer, path = site.offer(carried=True, **changes)
    return offer, path


def test_a_staged_delta_needs_no_payload_again(house: House) -> None:
    """Not after a restart of the central, nor if its site was started again meanwhile."""
    central = house.central
    a, b = central.join("local/a"), central.join("local/b")
    a.seed()
    held = b.acquire().lease  # a round that waits for b
    offer, path = carried_offer(house, a)
    assert house.bring(path, offer.payload, replica="local/a")
    assert central.inbox.invitation("local/a", "phase")[0].staged == ()
    assert central.inbox.accept_offer(offer, None) is None
    assert house.names() == [], "the aggregator has its own"
    central.reopen()
    told = central.inbox.invitation("local/a", "phase")[0]
    assert told.staged == (offer.delta,)
    assert central.inbox.invitation("local/b", "phase")[0].staged == ()
    assert central.inbox.accept_offer(offer, None) is None
    assert of(central, offer.delta) == "staged"
    b.deliver(lease=held)
    central.inbox.tick()
    assert of(central, offer.delta) == "merged"
    assert central.inbox.invitation("local/a", "phase")[0].staged == ()


def test_a_delta_that_lay_beside_its_message_needs_none_either(house: House) -> None:
    central = house.central
    a, b = central.join("local/a"), central.join("local/b")
    a.seed()
    b.acquire()
    offer, path = a.offer()
    assert central.inbox.accept_offer(offer, path) is None
    again = offer.model_copy(update={"carried": True})
    assert central.inbox.invitation("local/a", "phase")[0].staged == (offer.delta,)
    assert central.inbox.accept_offer(again, None) is None


def test_a_staged_delta_that_was_lost_here_is_asked_for(house: House) -> None:
    central = house.central
    a, b = central.join("local/a"), central.join("local/b")
    a.seed()
    b.acquire()
    offer, path = carried_offer(house, a)
    house.bring(path, offer.payload, replica="local/a")
    central.inbox.accept_offer(offer, None)
    for file in (central.folder / "central" / "deltas").iterdir():
        file.unlink()
    assert central.inbox.invitation("local/a", "phase")[0].staged == ()
    with pytest.raises(PayloadError, match="announced as carried and is not here: send it again"):
        central.inbox.accept_offer(offer, None)
    house.bring(path, offer.payload, replica="local/a")
    assert central.inbox.accept_offer(offer, None) is None
    assert of(central, offer.delta) == "staged"


@pytest.mark.parametrize("first", ["owner", "other"])
def test_who_names_anothers_object_takes_nothing_from_it(house: House, first: str) -> None:
    """Content is what an object is known by: equal bytes are one object, whoever brought them.

    Whoever names it has it counted as its own, over its own blocks; the owner brings it again.
    """
    central = house.central
    a, b = central.join("local/a"), central.join("local/b")
    a.seed()
    owners, path = carried_offer(house, a)
    others, _ = carried_offer(house, b, payload=owners.payload)
    assert house.bring(path, owners.payload, replica="local/a")
    order = [owners, others] if first == "owner" else [others, owners]
    assert central.inbox.accept_offer(order[0], None) is None
    with pytest.raises(PayloadError, match="send it again"):
        central.inbox.accept_offer(order[1], None)
    assert house.bring(path, owners.payload, replica=order[1].replica)
    assert central.inbox.accept_offer(order[1], None) is None
    central.inbox.tick()
    assert [of(central, one.delta) for one in order] == ["merged", "merged"]
    assert central.books.status()["coverage"]["committed"] == 4
    assert house.names() == []


def test_a_false_delta_removes_nobodys_upload(house: House) -> None:
    """An id that is decided, or another delta's, names an object in vain."""
    central = house.central
    a, b = central.join("local/a"), central.join("local/b")
    a.seed()
    held = b.acquire().lease
    mine, path = carried_offer(house, a)
    house.bring(path, mine.payload, replica="local/a")
    theirs, file = carried_offer(house, b, lease=held)
    central.inbox.accept_offer(mine, None)
    house.bring(file, theirs.payload, replica="local/b")
    false = mine.model_copy(update={"payload": theirs.payload, "tokens": mine.tokens + 1})
    with pytest.raises(Exception, match="was received before with other content"):
        central.inbox.accept_offer(false, None)
    assert house.names() == [theirs.payload.digest]
    assert central.inbox.accept_offer(theirs, None) is None
    central.inbox.tick()
    assert of(central, mine.delta) == "merged"
    house.bring(file, theirs.payload, replica="local/b")
    verdict = central.inbox.accept_offer(false, None)
    assert verdict is not None
    assert verdict.outcome == "merged", "of the delta with that id"
    assert house.names() == [theirs.payload.digest]


def test_a_late_seed_is_removed(house: House) -> None:
    central = house.central
    a = central.join("local/a")
    a.seed()
    theta, _ = central.merger.published.current.theta.read_bytes(), None
    path = central.folder / "late"
    info = write_theta(path, [(n, torch.zeros(s)) for n, s in SHAPES.items()], SHAPES)
    seed = Seed(
        run=central.books.run, replica="local/b", incarnation=central.token(),
        model=model_digest(SHAPES), payload=info, carried=True,
    )  # fmt: skip
    house.bring(path, info, replica="local/b")
    central.inbox.accept_seed(seed, None)
    assert house.names() == []
    beside = seed.model_copy(update={"carried": False})
    central.inbox.accept_seed(beside, path)
    assert not path.exists()
    assert central.merger.published.current.theta.read_bytes() == theta
