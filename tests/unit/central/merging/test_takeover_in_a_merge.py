"""A takeover while a round is being merged: what it voids is not in the round, and nothing ends."""

import pytest

from pww.central import aggregator as pww_aggregator
from pww.errors import Refused


def test_a_takeover_during_a_merge_voids_its_delta_and_the_round_is_merged_anew(
    world, monkeypatch, delta_of
) -> None:
    a, b = world.join("a/x"), world.join("b/y")
    lease_a, lease_b = a.lease(), b.lease()
    a.deliver(delta_of(1), lease=lease_a)
    b.deliver(delta_of(2), lease=lease_b)
    real = pww_aggregator.merge_finite
    merges = []

    def slow(*args, **kwargs):
        result = real(*args, **kwargs)
        merges.append(result)
        if len(merges) == 1:  # b died; its next process comes without its disk
            world.clock.advance(11.0)
            world.join("b/y")
        return result

    monkeypatch.setattr(pww_aggregator, "merge_finite", slow)
    assert world.merger.maybe_close() is None
    assert world.books.round == 0
    report = world.merger.maybe_close()
    assert report is not None
    assert report.merged == ("a/x",)
    assert world.books.round == 1
    world.books.verify()


def test_another_ones_delta_id_does_not_touch_the_payload(world, delta_of) -> None:

    a, b = world.join("a/x"), world.join("b/y")
    offer, path = a.offer(delta_of(1))
    assert world.merger.accept(offer, path) is None
    forged, other = b.offer(delta_of(2))
    forged = forged.model_copy(update={"delta": offer.delta})
    with pytest.raises(Refused, match="was received before with other content"):
        world.merger.accept(forged, other)
    assert world.merger.maybe_close() is None, "b is expected"
    world.clock.advance(60.0)
    report = world.merger.maybe_close()
    assert report is not None
    assert report.merged == ("a/x",)
    assert report.rejected == ()
