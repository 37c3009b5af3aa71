"""What a process brings along when it registers, and the two ends that it gets."""

import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))

from lone_replica import LEASES, SHAPES, SPACE, Lone, alone, config, put_one, theta_in

from pww import connect as pww_connect
from pww.central.audit import audit
from pww.central.coordinator import Coordinator
from pww.central.http import CoordinatorApp
from pww.central.inprocess import InProcessExchange
from pww.central.ledger import Ledger
from pww.clock import SystemClock
from pww.connect import Start, connect, versions
from pww.errors import Refused, StateError, TrainerError
from pww.lease.space import BlockSpace
from pww.replica.session import Claims
from pww.transport.serve import AsgiServer
from pww.wire import Carriage, Verdict, model_digest


@pytest.fixture(scope="module")
def group():
    ranks = alone()
    yield ranks
    ranks.close()


@pytest.fixture
def ranks(group):
    group.asked.clear()
    return group


def start_with(last, tmp_path: Path, space: BlockSpace = SPACE) -> Start:
    return Start(space, model_digest(SHAPES), tmp_path / "theta0.safetensors", last)


@pytest.fixture
def lone(tmp_path: Path, ranks):
    lone = Lone(tmp_path / "run", ranks)
    yield lone
    lone.close()


def test_a_first_start_claims_nothing(tmp_path: Path) -> None:
    assert start_with(None, tmp_path).claims == Claims()


def test_a_pending_entry_claims_its_lease_and_its_delta(lone, tmp_path: Path) -> None:
    theta = theta_in(tmp_path / "theta", 4)
    entry = put_one(lone.outbox, lone.trainer, theta, LEASES[1])
    assert start_with(entry, tmp_path).claims == Claims(
        run="a" * 32,
        last_round=4,
        theta_round=4,
        theta_hash=theta.state_hash,
        leases=(LEASES[1].id,),
        deltas=(entry.offer.delta,),
    )


@pytest.mark.parametrize("outcome", ["merged", "rejected"])
def test_a_settled_entry_claims_no_lease_any_more(lone, tmp_path: Path, outcome) -> None:
    theta = theta_in(tmp_path / "theta", 4)
    entry = put_one(lone.outbox, lone.trainer, theta, LEASES[1])
    lone.outbox.settle(Verdict(delta=entry.offer.delta, outcome=outcome, round=7))
    claims = start_with(lone.outbox.last, tmp_path).claims
    expected = Claims(run="a" * 32, last_round=7, theta_round=4, theta_hash=theta.state_hash)
    assert claims == expected


@pytest.mark.parametrize("outcome", ["merged", "rejected", ""])
def test_a_residual_is_claimed_by_its_tag_whatever_the_last_entry_is(
    lone, tmp_path: Path, outcome
) -> None:
    entry = put_one(lone.outbox, lone.trainer, theta_in(tmp_path / "theta", 4), LEASES[1])
    if outcome:
        lone.outbox.settle(Verdict(delta=entry.offer.delta, outcome=outcome, round=7))
    start = replace(start_with(lone.outbox.last, tmp_path), residual="d" * 32)
    assert start.claims.residual == "d" * 32


def test_alone_the_books_are_in_the_runs_own_folder(lone) -> None:
    assert isinstance(lone.ends.exchange, InProcessExchange)
    assert (lone.run / "central" / "ledger.sqlite").is_file()
    granted = lone.ends.session.acquire(2)
    assert granted is not None
    assert granted.replica == "local/a"
    assert audit(lone.run).leased == 2


def test_leases_come_back_at_once_unless_they_are_kept(tmp_path: Path, ranks) -> None:
    lone = Lone(tmp_path / "run", ranks)
    kept, given = lone.ends.session.acquire(2), lone.ends.session.acquire(3)
    assert kept is not None
    assert given is not None
    lone.ends.close((kept.id,))
    lone.metrics.close()
    lone.outbox.close()
    assert (audit(lone.run).leased, audit(lone.run).unleased) == (2, 9)


def test_a_process_that_was_killed_is_not_waited_for(tmp_path: Path, ranks) -> None:
    """The run folder's lock says that it is dead: no `detect_s` of silence is needed."""
    dead = Lone(tmp_path / "run", ranks)
    first = dead.ends.session.acquire(2)
    assert first is not None
    # no goodbye
    clock = SystemClock()
    begin = clock.monotonic()
    again = Lone(tmp_path / "run", ranks)
    assert clock.monotonic() - begin < config().darl.detect_s
    second = again.ends.session.acquire(2)
    assert second is not None
    assert second.span == first.span
    again.close()
    dead.close()


def test_another_model_or_corpus_is_refused(tmp_path: Path, ranks) -> None:
    Lone(tmp_path / "run", ranks).close()
    clock, run = SystemClock(), tmp_path / "run"
    other = Start(SPACE, model_digest({"w": (1,)}), run / "theta0.safetensors", None)
    with pytest.raises(Refused) as model:
        connect(config(), run, other, clock=clock, stop=ranks.asked)
    assert model.value.code == "wrong_model"
    space = BlockSpace(
        num_windows=43, block_windows=4, seed=1, epochs=1, window_tokens=9, corpus="c" * 64
    )
    with pytest.raises(StateError, match="42"):
        connect(config(), run, start_with(None, run, space), clock=clock, stop=ranks.asked)


def test_a_model_larger_than_what_may_travel_is_refused_before_training(tmp_path: Path) -> None:
    server = AsgiServer(host="127.0.0.1", port=0, key="central.port")
    clock, ledger = SystemClock(), Ledger(tmp_path / "ledger.sqlite")
    darl = config().darl
    books = Coordinator(ledger, SPACE, darl=darl, aggregator_port=1, clock=clock, limit_mb=3)
    server.start(CoordinatorApp(books, clock=SystemClock()), name="coordinator")
    start = start_with(None, tmp_path)
    start.seed.write_bytes(bytes(3_100_000))
    central = config().central.model_copy(update={"url": f"http://127.0.0.1:{server.port}"})
    here = config().model_copy(update={"central": central})
    try:
        with pytest.raises(TrainerError) as fault:
            connect(here, tmp_path, start, clock=clock, stop=threading.Event())
    finally:
        server.stop()
        ledger.close()
    assert str(fault.value).startswith(
        "theta is 3.1 MB, but transport.limit_mb is 3 at the central"
    )
    assert "64 here: raise it at both" in str(fault.value)
    assert books.live() == ()


@pytest.mark.parametrize("theirs_mb", [3, 300])
def test_with_a_carrier_the_centrals_limit_holds(tmp_path: Path, monkeypatch, theirs_mb) -> None:
    """It decides what lies beside a message; a smaller limit here could not take it in."""
    server = AsgiServer(host="127.0.0.1", port=0, key="central.port")
    clock, ledger = SystemClock(), Ledger(tmp_path / "ledger.sqlite")
    carriage = Carriage(codec="fp32", feedback=False, inline_mb=theirs_mb, blob_port=2)
    books = Coordinator(
        ledger, SPACE, darl=config().darl, aggregator_port=1, clock=clock, limit_mb=theirs_mb,
        carriage=carriage,
    )  # fmt: skip
    server.start(CoordinatorApp(books, clock=SystemClock()), name="coordinator")
    start = start_with(None, tmp_path)
    start.seed.write_bytes(bytes(3_100_000))
    central = config().central.model_copy(update={"url": f"http://127.0.0.1:{server.port}"})
    here = config().model_copy(update={"central": central})
    given: list[int] = []

    def exchange(fleet: object, *, limit_mb: int, **rest: object) -> InProcessExchange:
        given.append(limit_mb)
        raise StateError("seen")

    monkeypatch.setattr("pww.replica.federated.FederatedExchange", exchange)
    try:
        with pytest.raises(StateError, match="seen"):
            connect(here, tmp_path, start, clock=clock, stop=threading.Event())
    finally:
        server.stop()
        ledger.close()
    assert given == [theirs_mb]
    assert books.live() == (), "who cannot go on says goodbye"


def test_versions_of_what_decides_a_phase(monkeypatch) -> None:
    found = versions()
    assert set(found) == {"pww", "torch", "torchtitan", "tokenizers", "flwr"}
    assert found["flwr"] == "1.42.0"
    monkeypatch.setattr(pww_connect, "RECORDED", ("no-such-package",))
    assert versions() == {"no-such-package": "absent"}
