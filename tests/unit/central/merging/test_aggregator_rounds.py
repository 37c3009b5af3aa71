"""Rounds: who is merged with what weight, who is left out and told, and what the report says."""

import pytest

from pww.config import schema
from pww.transport.tensorfile import TensorReader, state_hash


def both(world, a, b, deltas, **changes):
    """Both lease, then both deliver; nothing is merged before the second."""
    leases = a.lease(), b.lease(6)
    b.deliver(deltas[1], lease=leases[1], **changes)
    assert world.merger.maybe_close() is None
    a.deliver(deltas[0], lease=leases[0], **changes)
    return world.merger.maybe_close()


def test_rounds_of_two_sites_are_numpys_to_the_bit(world, reference, delta_of):
    a, b = world.join("a/x"), world.join("b/y")
    for round_ in range(1, 4):
        deltas = [delta_of(10 * round_), delta_of(10 * round_ + 1)]
        report = both(world, a, b, deltas)
        reference.merge(deltas, tokens=[100, 300])
        assert world.matches(reference)
        assert (world.books.round, report.round) == (round_, round_)
        assert world.books.state_hash == state_hash(world.merger.published.current.theta)
        assert world.payloads() == []
        assert [v.outcome for v in world.books.verdicts("b/y")] == ["merged"] * round_


def test_the_report_is_arithmetic(world, reference, delta_of):
    a, b = world.join("a/x"), world.join("b/y")
    one, two = delta_of(1), delta_of(2)
    leases = a.lease(), b.lease(6)
    offer, path = a.offer(one, lease=leases[0], metrics={"loss": 2.0, "drift": 0.01})
    world.merger.accept(offer, path)
    second, path = b.offer(two, lease=leases[1], metrics={"loss": 4.0, "drift": 0.3})
    world.merger.accept(second, path)
    report = world.merger.maybe_close()
    reference.merge([one, two], tokens=[100, 300])
    norms = [sum(float((t.double() ** 2).sum()) for t in d.values()) ** 0.5 for d in (one, two)]
    assert report.merged == ("a/x", "b/y")
    assert report.rejected == ()
    assert report.tokens == 400
    assert report.loss == pytest.approx(3.5)
    assert (report.drift_mean, report.drift_max) == (pytest.approx(0.155), 0.3)
    assert report.bytes_received == offer.payload.size_bytes + second.payload.size_bytes
    assert report.delta_norm == pytest.approx(reference.norm, rel=1e-6)
    average = 0.25 * norms[0] + 0.75 * norms[1]
    assert report.avg_delta_norm == pytest.approx(average, rel=1e-6)
    assert report.agreement == pytest.approx(reference.norm / average, rel=1e-6)
    assert world.books.report() == report


def test_a_lone_site_is_not_kept_waiting(world, reference, delta_of):
    a, _ = world.join("a/x"), world.join("b/idle")
    assert world.merger.maybe_close() is None
    a.deliver(delta_of(1))
    world.merger.maybe_close()
    reference.merge([delta_of(1)], tokens=[100])
    assert world.matches(reference)


def test_a_site_that_died_is_not_waited_for(world, delta_of):
    a, b = world.join("a/x"), world.join("b/y")
    b.lease()
    a.deliver(delta_of(1), metrics={"phase_seconds": 1e6})
    world.clock.advance(9.0)
    world.beat(a)
    world.books.tick()
    assert world.merger.maybe_close() is None
    world.clock.advance(9.0)
    world.books.tick()
    assert world.merger.maybe_close().merged == ("a/x",)


def test_nan_in_the_last_tensor_pollutes_nothing(world, reference, delta_of, caplog):
    a, b = world.join("a/x"), world.join("b/y")
    good, bad = delta_of(1), delta_of(2)
    bad["last.weight"][-1] = float("nan")  # as a broken site would send it: unchecked
    offer, path = unchecked(world, b, bad)
    lease = a.lease()
    verdict = world.merger.accept(offer, path)
    assert verdict.outcome == "rejected"
    assert verdict.reason.startswith("tensor last.weight: 1 of 7 values are nan or inf")
    assert "a delta of b/y was rejected: tensor last.weight" in caplog.text
    a.deliver(good, lease=lease)
    report = world.merger.maybe_close()
    reference.merge([good], tokens=[100])
    assert world.matches(reference)
    assert report.merged == ("a/x",)
    assert [text.split(":")[0] for text in report.rejected] == ["b/y"]
    assert world.payloads() == []


def unchecked(world, site, delta):
    """An offer whose payload skips the site's own finite check."""
    from pww.codec.fp32 import Fp32

    class Careless(Fp32):
        def encode(self, tensor, *, seed=0):
            return {"values": tensor}

    from pww.transport.payload import write_payload

    offer, path = site.offer({name: t.nan_to_num() for name, t in delta.items()})
    info = write_payload(path, delta.items(), {n: t.shape for n, t in delta.items()}, Careless())
    return offer.model_copy(update={"payload": info}), path


def test_a_site_that_says_it_is_not_finite_is_named(world, delta_of, caplog):
    a, b = world.join("a/x"), world.join("b/y")
    offer, _ = b.offer(None)
    lease = a.lease()
    verdict = world.merger.accept(offer, None)
    assert (verdict.outcome, verdict.reason) == (
        "rejected", "it is not finite (nan or inf at the site)",
    )  # fmt: skip
    assert "a delta of b/y was rejected: it is not finite" in caplog.text
    a.deliver(delta_of(1), lease=lease)
    assert world.merger.maybe_close().rejected == (f"b/y: {verdict.reason}",)
    a.deliver(delta_of(2))
    assert world.merger.maybe_close().rejected == ()


def test_the_largest_metrics_there_are_make_a_report_that_can_be_sent(world, delta_of):
    a, b = world.join("a/x"), world.join("b/y")
    extreme = {"loss": 1e30, "drift": 1e30, "delta_norm": 1e30}
    leases = a.lease(), b.lease()
    for site, lease in zip((a, b), leases, strict=True):
        assert site.deliver(delta_of(1), lease=lease, metrics=extreme) is None
    report = world.merger.maybe_close()
    assert (report.loss, report.drift_mean, report.drift_max) == (1e30, 1e30, 1e30)
    invitation, _ = world.merger.invitation("a/x", "phase")
    assert type(invitation).model_validate_json(invitation.model_dump_json()) == invitation


def huge(delta, value=3e38):
    """Every value is finite, and no theta survives it."""
    return {name: t * 0 + value for name, t in delta.items()}


RUINS = "merging it would make theta not finite: tensor embed.weight"


def test_a_huge_delta_is_left_out_by_name_and_the_rest_is_merged(world, reference, delta_of):
    a, b, c = (world.join(name) for name in ("a/x", "b/y", "c/z"))
    leases = a.lease(), b.lease(20), c.lease()
    for site, lease, delta in zip((a, b, c), leases, (1, 2, 3), strict=True):
        tensors = huge(delta_of(2)) if site is b else delta_of(delta)
        assert site.deliver(tensors, lease=lease) is None
    report = world.merger.maybe_close()
    reference.merge([delta_of(1), delta_of(3)], tokens=[100, 100])
    assert world.matches(reference)
    assert report.merged == ("a/x", "c/z")
    assert report.rejected == (f"b/y: {RUINS}",)
    assert world.books.verdicts("b/y")[-1].reason == RUINS
    assert (world.payloads(), world.generations()) == ([], ["round-000000", "round-000001"])


def test_a_round_of_huge_deltas_only_is_void(world, reference, delta_of, caplog):
    a, b = world.join("a/x"), world.join("b/y")
    assert both(world, a, b, [huge(delta_of(1)), huge(delta_of(2), -3.4e38)]) is None
    assert "round 1 is void" in caplog.text
    assert (world.books.round, world.payloads(), world.generations()) == (0, [], ["round-000000"])
    assert world.matches(reference)
    for site in (a, b):
        assert world.books.verdicts(site.replica)[-1].reason == RUINS
        site.prev = ""
    both(world, a, b, [delta_of(3), delta_of(4)])
    reference.merge([delta_of(3), delta_of(4)], tokens=[100, 300])
    assert world.matches(reference)


def test_what_was_encoded_on_a_huge_delta_is_left_out_too(world, reference, delta_of):
    a, b = world.join("a/x"), world.join("b/y")
    lease, first, second = b.lease(), a.lease(20), a.lease()
    a.deliver(huge(delta_of(1)), lease=first)
    lost = a.prev
    a.deliver(delta_of(2), lease=second)
    b.deliver(delta_of(3), lease=lease)
    report = world.merger.maybe_close()
    reference.merge([delta_of(3)], tokens=[100])
    assert world.matches(reference)
    assert report.merged == ("b/y",)
    assert f"a/x: it was encoded on delta {lost}, which was left out" in report.rejected


def test_deltas_that_ruin_theta_over_rounds_stop_before_it(world, delta_of):
    """Each is harmless alone; what they add up to in momentum and theta is not."""
    a = world.join("a/x")
    for _ in range(12):
        a.deliver(huge(delta_of(1), 1e38))
        if world.merger.maybe_close() is None:
            break
    assert world.books.verdicts("a/x")[-1].reason == RUINS
    for kind in ("theta", "momentum"):
        path = world.merger.published.current.theta.with_name(f"{kind}.safetensors")
        with TensorReader(path) as reader:
            assert all(bool(reader.get(name).isfinite().all()) for name in reader.names)


def test_another_models_delta_is_turned_away_by_tensor(world, delta_of):
    a = world.join("a/x")
    for change, text in (
        ({"more": delta_of(1)["scale"]}, r"tensor more has shape () in the delta and none here"),
        ({"scale": delta_of(1)["last.weight"]}, "tensor scale has shape (7,) in the delta and ()"),
    ):
        verdict = a.deliver(delta_of(1) | change)
        assert verdict.outcome == "rejected"
        assert verdict.reason.startswith(text)
    short = {"scale": delta_of(1)["scale"]}
    assert "tensor embed.weight has shape none in the" in a.deliver(short).reason
    assert world.merger.maybe_close() is None


def test_a_late_delta_is_discounted_and_a_very_late_one_rejected(
    make_world, tmp_path, reference, delta_of
):
    world = make_world(tmp_path, diloco=make_world.diloco.model_copy(update={"quorum": 0.3}))
    a, b, c = world.join("a/x"), world.join("b/slow"), world.join("c/slower")
    slow, slower = b.lease(6), c.lease()
    for round_ in range(3):
        if round_ == 1:
            b.deliver(delta_of(50), lease=slow)
        a.deliver(delta_of(round_))
        if world.merger.maybe_close() is None:
            world.clock.advance(2.0)
            world.beat(a, b, c)
            world.merger.maybe_close()
        if round_ == 1:
            reference.merge([delta_of(1), delta_of(50)], tokens=[100, 300], late=[0, 1])
        else:
            reference.merge([delta_of(round_)], tokens=[100])
        assert world.books.round == round_ + 1
        assert world.matches(reference)
    verdict = c.deliver(delta_of(60), lease=slower)
    assert verdict.outcome == "rejected"
    assert verdict.reason.startswith("staleness 3 exceeds the window of 2 rounds")
    assert world.payloads() == []


def test_a_lone_late_delta_is_discounted_too(world, reference, delta_of):
    a, b = world.join("a/x"), world.join("b/slow")
    slow = b.lease()
    a.deliver(delta_of(1))
    assert world.merger.maybe_close() is None
    world.clock.advance(2.0)
    world.merger.maybe_close()
    b.deliver(delta_of(2), lease=slow)
    world.merger.maybe_close()
    reference.merge([delta_of(1)], tokens=[100])
    reference.merge([delta_of(2)], tokens=[100], late=[1])
    assert world.matches(reference)


def test_a_duplicate_is_merged_once(world, reference, delta_of):
    a = world.join("a/x")
    offer, path = a.offer(delta_of(1))
    assert world.merger.accept(offer, path) is None
    assert world.merger.accept(offer, path) is None
    report = world.merger.maybe_close()
    reference.merge([delta_of(1)], tokens=[100])
    assert (report.merged, report.tokens) == (("a/x",), 100)
    for payload in (path, None):  # after the verdict nothing has to come along
        assert world.merger.accept(offer, payload).outcome == "merged"
    assert world.merger.maybe_close() is None
    assert world.matches(reference)
    assert world.payloads() == []


def test_two_phases_of_one_replica_in_one_round(world, reference, delta_of):
    a, b = world.join("a/x"), world.join("b/y")
    b.lease()
    first, second = a.lease(), a.lease()
    a.deliver(delta_of(1), lease=first)
    a.deliver(delta_of(2), lease=second)
    world.clock.advance(5.0)
    world.merger.maybe_close()
    world.clock.advance(5.0)
    report = world.merger.maybe_close()
    reference.merge([delta_of(1), delta_of(2)], tokens=[100, 100])
    assert report.merged == ("a/x", "a/x")
    assert world.matches(reference)


def test_a_round_is_partial_only_if_every_delta_is(world, reference, delta_of):
    a, b = world.join("a/x"), world.join("b/y")
    assert both(world, a, b, [delta_of(1), delta_of(2)]) is not None
    reference.merge([delta_of(1), delta_of(2)], tokens=[100, 300])
    leases = a.lease(), b.lease()
    a.deliver(delta_of(3), lease=leases[0], partial=True)
    b.deliver(delta_of(4), lease=leases[1])
    world.merger.maybe_close()
    reference.merge([delta_of(3), delta_of(4)], tokens=[100, 100])
    assert world.matches(reference)
    a.deliver(delta_of(5), partial=True)
    world.merger.maybe_close()
    reference.merge([delta_of(5)], tokens=[100], partial=True)
    assert world.matches(reference)


def test_bf16_deltas_are_decoded(make_world, tmp_path, reference, delta_of):
    world = make_world(tmp_path)
    delta = {name: t.bfloat16().float() for name, t in delta_of(1).items()}
    world.join("a/x").deliver(delta_of(1), codec="bf16")
    world.merger.maybe_close()
    reference.merge([delta], tokens=[100])
    assert world.matches(reference)


def test_federated_averaging(make_world, tmp_path, delta_of):
    outer = schema.Outer(optimizer="sgd", lr=1.0, momentum=0.0, solo_full_step=False)
    world = make_world(tmp_path, diloco=make_world.diloco.model_copy(update={"outer": outer}))
    a, b = world.join("a/x"), world.join("b/y")
    both(world, a, b, [delta_of(1), delta_of(2)])
    with TensorReader(world.merger.published.current.theta) as reader:
        for name in reader.names:
            sites = [(delta_of(0)[name] - delta_of(n)[name]).double() for n in (1, 2)]
            average = 0.25 * sites[0] + 0.75 * sites[1]
            error = (reader.get(name).double() - average).abs().max()
            assert float(error) < 1e-6


def test_a_quorum_waits_for_the_grace_window(world, delta_of):
    sites = [world.join(f"{name}/x") for name in "abc"]
    leases = [site.lease() for site in sites]
    world.clock.advance(100.0)
    world.beat(*sites)
    sites[0].deliver(delta_of(1), lease=leases[0], metrics={"phase_seconds": 90.0})
    assert world.merger.maybe_close() is None
    world.clock.advance(20.0)
    assert world.merger.maybe_close() is None  # one of three is no quorum, however long
    sites[1].deliver(delta_of(2), lease=leases[1], metrics={"phase_seconds": 80.0})
    assert world.merger.maybe_close() is None  # two of three: 10 % of 90 s from now
    world.clock.advance(8.9)
    assert world.merger.maybe_close() is None
    world.clock.advance(0.2)
    assert world.merger.maybe_close().merged == ("a/x", "b/x")


def test_a_quorum_that_vanished_is_counted_anew(world, delta_of):
    a, b = world.join("a/x"), world.join("b/y")
    b.lease()
    a.deliver(delta_of(1))
    assert world.merger.maybe_close() is None
    world.books.reject(a.prev, "its replica was replaced")
    a.prev = ""
    assert world.merger.maybe_close() is None
    world.clock.advance(8.0)
    a.deliver(delta_of(2))
    assert world.merger.maybe_close() is None
    world.clock.advance(1.5)
    assert world.merger.maybe_close().merged == ("a/x",)


def test_a_round_without_a_usable_delta_is_void(world, delta_of, caplog):
    a = world.join("a/x")
    a.deliver(delta_of(1))
    path = next((world.state / "deltas").iterdir())
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # the disk rots between receipt and merge
    path.write_bytes(data)
    assert world.merger.maybe_close() is None
    assert (world.books.round, world.payloads(), world.generations()) == (0, [], ["round-000000"])
    verdict = world.books.verdicts("a/x")[-1]
    assert verdict.outcome == "rejected"
    assert "its payload changed on the central's disk after it was received" in verdict.reason
    assert "round 1 is void" in caplog.text
    a.prev = ""
    a.deliver(delta_of(2))
    assert len(world.merger.maybe_close().rejected) == 1


def test_what_was_encoded_on_a_lost_delta_is_left_out(world, reference, delta_of):
    a, b = world.join("a/x"), world.join("b/y")
    lease, first, second = b.lease(), a.lease(), a.lease()
    a.deliver(delta_of(1), lease=first)
    lost = a.prev
    a.deliver(delta_of(2), lease=second)
    (world.state / "deltas" / f"{lost}.payload").write_bytes(b"")
    b.deliver(delta_of(3), lease=lease)
    report = world.merger.maybe_close()
    reference.merge([delta_of(3)], tokens=[100])
    assert world.matches(reference)
    assert report.merged == ("b/y",)
    assert f"a/x: it was encoded on delta {lost}, which was left out" in report.rejected


def test_old_generations_are_collected(world, delta_of):
    a = world.join("a/x")
    for round_ in range(3):
        a.deliver(delta_of(round_))
        world.merger.maybe_close()
    assert world.generations() == ["round-000002", "round-000003"]
