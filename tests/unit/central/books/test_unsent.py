"""What the central tells of residuals: which delta is the last, and what never reaches theta."""

import pytest

from pww.wire import PhaseMetrics

HELD = PhaseMetrics(
    steps=1, tokens=0, loss=2.0, phase_seconds=1.0, tokens_per_s=1.0, delta_norm=4.0,
    residual_norm=0.5,
)  # fmt: skip


def merge_one(desk, site, **told):
    """A merged delta that left a residual behind."""
    offer = site.offer(site.acquire())
    metrics = HELD.model_copy(update={"tokens": offer.tokens, **told})
    offer = offer.model_copy(update={"metrics": metrics})
    assert desk.books.receive(offer) is None
    desk.merge(offer)
    site.prev = offer.delta
    return offer


def test_a_process_is_told_its_replicas_last_merged_delta(desk) -> None:
    site = desk.site()
    assert site.registered.last_merged == ""
    first = merge_one(desk, site)
    assert site.register().last_merged == first.delta
    second = merge_one(desk, site)
    late = site.deliver(site.acquire())
    assert site.register(deltas=(late.delta,)).last_merged == second.delta
    desk.books.reject(late.delta, "late")
    assert desk.site("s/b").registered.last_merged == "", "another replica"
    desk.restart()
    site.leave()
    assert desk.site().registered.last_merged == second.delta


@pytest.mark.parametrize("tag", ["", "9" * 32])
def test_a_process_without_the_residual_is_noted_once(desk, caplog, tag: str) -> None:
    site = desk.site()
    last = merge_one(desk, site)
    site.leave()
    again = desk.site(residual=tag)
    text = (
        f"s/a comes without the residual of its last merged delta, {last.delta}: it is never sent "
        "(norm 0.5)"
    )
    assert caplog.text.count(text) == 1
    again.register(residual=tag)
    assert caplog.text.count(text) == 1


def test_a_process_with_the_residual_is_not(desk, caplog) -> None:
    site = desk.site()
    first = merge_one(desk, site)
    site.leave()
    again = desk.site(residual=first.delta)
    again.prev = first.delta
    second = merge_one(desk, again)  # it does not hear of the verdict
    again.leave()
    third = desk.site(residual=first.delta, deltas=(second.delta,))
    third.prev = second.delta
    merge_one(desk, third, residual_norm=0.0)  # an exact codec leaves none
    third.leave()
    desk.site()
    assert "residual" not in caplog.text


def test_what_stays_behind_is_told_of_every_replica_gone_or_not(desk) -> None:
    assert desk.books.unsent() == ()
    b, a, exact = desk.site("s/b"), desk.site("s/a"), desk.site("s/c")
    exact.contribute(2)
    merge_one(desk, b)
    merge_one(desk, a)
    last = merge_one(desk, b, residual_norm=1.0)
    b.leave()
    desk.restart()
    found = desk.books.unsent()
    assert [one.replica for one in found] == ["s/a", "s/b"]
    assert (found[1].delta, found[1].norm, found[1].of_delta) == (last.delta, 1.0, 0.25)
    assert str(found[1]) == "s/b: norm 1, 25.00% of its last delta's"
