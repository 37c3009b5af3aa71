"""What the options do to theta, by hand: a solo round's full step, clipped norms."""

import pytest
import torch

from pww.central.kept import Kept
from pww.outer import norm_clips, weights
from pww.transport.tensorfile import TensorReader

HAND = {"embed.weight": (40, 3), "scale": (), "last.weight": (7,)}


def ones(value):
    return {name: torch.full(shape, value) for name, shape in HAND.items()}


def diloco_of(world_type, *, norm_clip=0.0, solo=False, momentum=0.9, lr=0.7):
    base = world_type.diloco
    outer = base.outer.model_copy(update={"solo_full_step": solo, "momentum": momentum, "lr": lr})
    return base.model_copy(update={"outer": outer, "norm_clip": norm_clip})


def started(make_world, folder, **how):
    """A world whose theta(0) is 1.0 throughout."""
    world = make_world(folder, seeded=False, diloco=diloco_of(make_world, **how))
    path = folder / "ones"
    world.merger.accept_seed(world.seed_message(path, ones(1.0)), path)
    return world


def theta_of(world):
    with TensorReader(world.merger.published.current.theta) as reader:
        return {name: reader.get(name) for name in reader.names}


def all_close(world, value):
    return all((t - value).abs().max() < 1e-6 for t in theta_of(world).values())


def test_global_1_and_sites_at_0_8_and_0_6(make_world, tmp_path):
    """Equal tokens, Nesterov 0.7/0.9: 0.601; lr 1 without momentum: their mean, 0.7."""
    for folder, how, value in (
        ("nesterov", {}, 0.601),
        ("average", {"lr": 1.0, "momentum": 0.0}, 0.7),
    ):
        (tmp_path / folder).mkdir()
        world = started(make_world, tmp_path / folder, **how)
        a, b = world.join("a/x"), world.join("b/y")
        a.deliver(ones(0.2))
        b.deliver(ones(0.4))
        assert world.merger.maybe_close().round == 1
        assert all_close(world, value), folder


@pytest.mark.parametrize(("solo", "first", "second"), [
    (False, 1 - 0.7 * 0.5 * 1.9, None),
    (True, 1 - 0.5 * 1.9, 1 - 0.5 * 1.9 - 0.7 * (0.3 + 0.9 * (0.9 * 0.5 + 0.3))),
])  # fmt: skip
def test_a_solo_round_takes_the_full_step_if_asked(make_world, tmp_path, solo, first, second):
    """One contributor: u = delta * (1 + b) at the first step. With two, lr is 0.7 again."""
    world = started(make_world, tmp_path, solo=solo)
    a = world.join("a/x")
    a.deliver(ones(0.5))
    world.merger.maybe_close()
    assert all_close(world, first)
    if second is not None:
        b = world.join("b/y")
        a.deliver(ones(0.3))
        b.deliver(ones(0.3))
        world.merger.maybe_close()
        assert all_close(world, second)


def test_two_deltas_of_one_replica_are_a_solo_round(make_world, tmp_path):
    world = started(make_world, tmp_path, solo=True, momentum=0.0)
    a = world.join("a/x")
    world.join("b/y").lease()  # expected, so that the round waits
    a.deliver(ones(0.2))
    a.deliver(ones(0.4))
    world.clock.advance(5.0)
    assert world.merger.maybe_close() is None  # a quorum of two waits out its grace window
    world.beat(a)
    world.clock.advance(6.0)
    world.beat(a)
    world.books.tick()
    assert world.merger.maybe_close().merged == ("a/x", "a/x")
    assert all_close(world, 0.7)


def test_a_long_delta_is_clipped_to_the_median(make_world, tmp_path):
    """Norms 1, 2 and 30 (times one length): limit 1.5 brings the third to 1.5 * 2 = 3."""
    world = started(make_world, tmp_path, norm_clip=1.5, lr=1.0, momentum=0.0)
    sites = [world.join(name) for name in ("a/x", "b/y", "c/z")]
    for site, length in zip(sites, (0.1, 0.2, 3.0), strict=True):
        site.deliver(ones(length))
    report = world.merger.maybe_close()
    assert all_close(world, 1 - (0.1 + 0.2 + 0.3) / 3)
    assert report.delta_norm == pytest.approx(0.2 * 128**0.5)


def test_clipping_is_off_by_default_and_changes_no_bit_of_equals(make_world, tmp_path, delta_of):
    hashes = []
    for folder, clip in (("off", 0.0), ("on", 1.5)):
        (tmp_path / folder).mkdir()
        world = started(make_world, tmp_path / folder, norm_clip=clip)
        for name in ("a/x", "b/y"):
            world.join(name)
        a, b = (world.join(name, f"{i:032x}") for i, name in enumerate(("c/x", "d/y"), 500))
        a.deliver(delta_of(1), tokens=50)
        b.deliver(delta_of(2), tokens=150)
        world.merger.maybe_close()
        hashes.append(world.books.state_hash)
    assert hashes[0] == hashes[1]


def test_clips_in_closed_form():
    assert norm_clips([1.0, 2.0, 30.0], 1.5) == [1.0, 1.0, 0.1]
    assert norm_clips([5.0], 1.0) == [1.0]
    assert norm_clips([0.0, 0.0, 7.0], 2.0) == [1.0, 1.0, 0.0]
    assert norm_clips([1.0, 9.0], 2.0) == [1.0, 1.0]  # the median of two is their mean
    assert norm_clips([1.0, 9.0], 1.2) == [1.0, pytest.approx(6 / 9)]
    assert norm_clips([1.0, 900.0], 0.0) == [1.0, 1.0]
    assert weights([100, 300], [0, 1], 0.25, [1.0, 0.5]) == [0.25, pytest.approx(0.3)]
    assert weights([100, 300], [0, 1], 0.25) == weights([100, 300], [0, 1], 0.25, [1.0, 1.0])


def test_a_clipped_round_replays_to_itself(make_world, tmp_path):
    from pww.central.replay import replay

    world = make_world(tmp_path, diloco=diloco_of(make_world, norm_clip=1.1), keep_deltas=True)
    a, b = world.join("a/x"), world.join("b/y")
    a.deliver(ones(0.1))
    b.deliver(ones(9.0))
    world.merger.maybe_close()
    record, _ = Kept(world.state).round(1)
    assert record.diloco.norm_clip == 1.1
    assert replay(tmp_path, [], say=lambda _: None).ok
