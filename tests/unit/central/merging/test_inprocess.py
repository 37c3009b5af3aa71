"""The exchange of a lone replica: it seeds, merges on every push, and repeats its answers."""

import pytest

from pww.central.inprocess import PATIENCE_S, InProcessExchange
from pww.clock import ManualClock
from pww.errors import Unreachable
from pww.transport.exchange import Exchange
from pww.transport.tensorfile import state_hash


@pytest.fixture
def alone(make_world, tmp_path):
    world = make_world(tmp_path, seeded=False)
    world.seed_message(tmp_path / "seed")
    return world


def exchange_of(world) -> Exchange:
    return InProcessExchange(world.merger, replica="a/x", seed=world.folder / "seed")


def test_the_first_pull_seeds_and_the_next_ones_do_not(alone, delta_of):
    exchange = exchange_of(alone)
    theta = exchange.pull()
    assert (theta.round, theta.report) == (0, None)
    assert theta.path.read_bytes() == (alone.folder / "seed").read_bytes()
    assert theta.state_hash == state_hash(theta.path)
    assert exchange.pull() == theta
    alone.seed_message(alone.folder / "seed", delta_of(9))
    alone.reopen()
    assert exchange_of(alone).pull().state_hash == theta.state_hash


def test_every_push_is_one_round(alone, reference, delta_of):
    exchange, site = exchange_of(alone), alone.join("a/x")
    exchange.pull()
    for round_ in range(1, 4):
        offer, path = site.offer(delta_of(round_))
        verdict = exchange.push(offer, path)
        site.prev = offer.delta
        reference.merge([delta_of(round_)], tokens=[100])
        assert (verdict.outcome, verdict.round, verdict.delta) == ("merged", round_, offer.delta)
        assert alone.matches(reference)
        theta = exchange.pull(round_)
        assert (theta.round, theta.report.merged) == (round_, ("a/x",))
        assert theta.state_hash == state_hash(theta.path)
        assert exchange.push(offer, path) == verdict
    exchange.close()


def test_a_lease_taken_ahead_does_not_hold_the_round_up(alone, delta_of):
    exchange, site = exchange_of(alone), alone.join("a/x")
    exchange.pull()
    offer, path = site.offer(delta_of(1))
    site.lease()
    start = alone.clock.monotonic()
    assert exchange.push(offer, path).outcome == "merged"
    assert alone.clock.monotonic() == start


def test_a_delta_that_is_not_finite_is_rejected_at_once(alone):
    exchange, site = exchange_of(alone), alone.join("a/x")
    exchange.pull()
    offer, path = site.offer(None)
    assert exchange.push(offer, path).outcome == "rejected"


def test_a_push_again_after_a_crash_before_the_merge(alone, reference, delta_of):
    site = alone.join("a/x")
    exchange_of(alone).pull()
    offer, path = site.offer(delta_of(1))
    alone.merger.accept(offer, path)
    alone.reopen()
    assert exchange_of(alone).push(offer, path).outcome == "merged"
    reference.merge([delta_of(1)], tokens=[100])
    assert alone.matches(reference)


def test_a_second_replica_on_the_same_ledger_is_told(make_world, tmp_path, delta_of):
    diloco = make_world.diloco.model_copy(update={"quorum": 1.0})
    world = make_world(tmp_path, diloco=diloco)
    site, other = world.join("a/x"), world.join("b/y")
    other.lease()
    offer, path = site.offer(delta_of(1))

    class Waiting(ManualClock):
        """The other one is heard from all the time."""

        def wait(self, event, timeout_s):
            world.beat(other)
            return super().wait(event, timeout_s)

    world.merger.clock = waiting = Waiting(world.clock.monotonic())
    with pytest.raises(Unreachable, match=r"no verdict after 60 s: the round waits for b/y, which"):
        exchange_of(world).push(offer, path)
    assert waiting.monotonic() - world.clock.monotonic() >= PATIENCE_S
