"""A kept run replays to itself, bit for bit, and without a contribution to the closed form."""

import os

import pytest
import torch

from pww.central.__main__ import main
from pww.central.kept import Kept
from pww.central.replay import Cut, replay
from pww.errors import PayloadError, StateError
from pww.transport.tensorfile import TensorReader, state_hash


@pytest.fixture
def run(make_world, tmp_path, delta_of):
    """Three rounds: a/x and b/y, then a/x alone (bf16), then a/x, a/z and b/y, one of them late."""
    world = make_world(tmp_path, keep_deltas=True)
    a, b = world.join("a/x"), world.join("b/y")
    a.deliver(delta_of(1), tokens=100)
    b.deliver(delta_of(2), tokens=200)
    world.merger.maybe_close()
    slow = b.lease(2)
    a.deliver(delta_of(3), codec="bf16")
    world.beat(a, b)
    world.clock.advance(30.0)
    world.beat(a, b)
    world.merger.maybe_close()
    world.clock.advance(30.0)
    world.beat(a, b)
    assert world.merger.maybe_close() is not None
    z = world.join("a/z")
    a.deliver(delta_of(4))
    b.deliver(delta_of(5), lease=slow)
    z.deliver(delta_of(6), tokens=50)
    assert world.merger.maybe_close().round == 3
    world.theta = world.merger.published.current.theta
    world.hash = world.books.state_hash
    world.ledger.close()
    return world


def heard(world, *cuts):
    lines = []
    return replay(world.folder, [Cut.parse(cut) for cut in cuts], say=lines.append), lines


def tensors(path):
    with TensorReader(path) as reader:
        return {name: reader.get(name) for name in reader.names}


def test_a_whole_replay_is_the_run_bit_for_bit(run):
    result, lines = heard(run)
    assert result.ok
    assert (result.state_hash, result.distance) == (run.hash, 0.0)
    assert result.theta == run.folder / "replay-whole" / "final" / "theta.safetensors"
    assert result.theta.read_bytes() == run.theta.read_bytes()
    assert [line.split(",")[0] for line in lines] == [
        "round 0: 0 merged", "round 1: 2 merged", "round 2: 1 merged", "round 3: 3 merged",
    ]  # fmt: skip
    assert all("(the run's)" in line for line in lines)
    assert "the run's theta, bit for bit" in result.render()
    assert sorted(os.listdir(run.folder / "replay-whole")) == ["final"]
    again, _ = heard(run)  # over what the first one left
    assert again == result


def test_without_a_contribution_it_is_the_closed_form(run, reference, delta_of):
    result, lines = heard(run, "b/y@1", "a@3")
    reference.merge([delta_of(1)], tokens=[100])
    bf16 = {name: t.bfloat16().float() for name, t in delta_of(3).items()}
    reference.merge([bf16], tokens=[100])
    reference.merge([delta_of(5)], tokens=[100], late=[1])
    ours = tensors(result.theta)
    for name, theta in reference.theta.items():
        assert torch.equal(ours[name], torch.as_tensor(theta)), name
    assert result.ok
    assert not result.whole
    assert "1 left out" in lines[1]
    assert "2 left out" in lines[3]
    assert "the run's was" in lines[1]
    real = tensors(run.theta)
    length = sum(float(t.double().square().sum()) for t in real.values()) ** 0.5
    between = sum(float((ours[n].double() - real[n].double()).square().sum()) for n in ours) ** 0.5
    assert result.distance == pytest.approx(between / length, rel=1e-6)
    assert "not the run's theta" in result.render()
    assert result.theta.parent.parent.name == "replay-without-a@3,b.y@1"


def test_a_round_that_loses_everything_is_void(run, reference, delta_of):
    result, _ = heard(run, "a/x@2", "a@1", "b@1", "a@3", "b@3")
    assert result.state_hash == state_hash(Kept(run.state).theta0)


def test_what_was_never_merged_is_refused_by_name(run):
    with pytest.raises(StateError, match=r"--without c@1: round 1 merged a/x, b/y only"):
        heard(run, "c@1")
    with pytest.raises(StateError, match=r"--without a/x@4: the run merged rounds 1 to 3"):
        heard(run, "a/x@4")
    for odd in ("a", "a/x", "a/x@", "../x@1", "a/b/c@1", "a@1\n", ""):
        with pytest.raises(StateError, match="a contribution is site/replica@round or site@round"):
            Cut.parse(odd)
    assert str(Cut.parse("lumi/a@12")) == "lumi/a@12"


def test_a_run_that_kept_nothing_is_refused_with_the_advice(world, delta_of):
    world.join("a/x").deliver(delta_of(1))
    world.merger.maybe_close()
    with pytest.raises(StateError, match=r"a run that was started with central.keep_deltas=true"):
        heard(world)


def test_rounds_from_before_the_option_are_named(make_world, tmp_path, delta_of):
    world = make_world(tmp_path, keep_deltas=True)
    a = world.join("a/x")
    world.keep_deltas = False
    world.reopen()
    a.deliver(delta_of(1))
    world.merger.maybe_close()
    with pytest.raises(StateError, match=r"round 1 was merged without central.keep_deltas=true"):
        heard(world)


def test_a_run_without_theta0_has_nothing_to_replay(make_world, tmp_path):
    world = make_world(tmp_path, seeded=False, keep_deltas=True)
    with pytest.raises(StateError, match=r"has no theta\(0\) yet"):
        heard(world)


def test_damage_is_found(run):
    kept = Kept(run.state)
    _, deltas = kept.round(3)
    whole = deltas[1].path.read_bytes()
    deltas[1].path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(
        StateError, match=r"round 3: delta .* of a/z cannot be merged again .*BLAKE3"
    ):
        heard(run)
    deltas[1].path.write_bytes(whole)
    (deltas[1].path.parent / "round.json").write_text("{}")
    with pytest.raises(StateError, match=r"round-000003 cannot be read .*: restore the folder"):
        heard(run)


def test_a_damaged_theta0_is_found(run):
    kept = Kept(run.state)
    whole = kept.theta0.read_bytes()
    kept.theta0.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(PayloadError, match=r"theta\(0\) has BLAKE3"):
        heard(run)


def test_what_a_crash_kept_too_early_is_replaced(make_world, tmp_path, delta_of, monkeypatch):
    world = make_world(tmp_path, keep_deltas=True)
    a = world.join("a/x")
    a.deliver(delta_of(1))

    def dead(**_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(world.books, "close_round", dead)
        with pytest.raises(KeyboardInterrupt):
            world.merger.maybe_close()
    assert os.listdir(world.state / "kept" / "round-000001")
    world.reopen()
    b = world.join("b/y")
    b.deliver(delta_of(2))
    assert world.merger.maybe_close().merged == ("a/x", "b/y")
    assert heard(world)[0].ok
    assert not list(world.state.rglob("*.part"))


def test_the_command(run, capsys):
    assert main(["replay", str(run.folder)]) == 0
    out = capsys.readouterr().out
    assert "bit for bit" in out
    assert "replay-whole" in out
    assert main(["replay", str(run.folder), "--without", "a/x@2", "--without=b@1"]) == 0
    assert "relative L2 distance to the run's theta 1.05" in capsys.readouterr().out
    assert main(["replay", str(run.folder), "--without", "c@1"]) == 1
    assert "round 1 merged a/x, b/y only" in capsys.readouterr().err
    assert main(["replay", str(run.folder), "--with"]) == 2
    assert "replay takes one folder at most and --without" in capsys.readouterr().err
    assert main(["replay", "--help"]) == 0
    (run.state / "kept" / "round-000002" / "round.json").unlink()
    assert main(["replay", str(run.folder)]) == 1
    assert "keep_deltas" in capsys.readouterr().err


def test_a_run_that_is_served_is_not_replayed(run, capsys):
    from pww.folder import owned

    with owned(run.folder, remedy=""):
        assert main(["replay", str(run.folder)]) == 1
    assert "a replay is for when it has stopped" in capsys.readouterr().err
