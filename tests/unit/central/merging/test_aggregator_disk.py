"""What a central makes of a disk that damages, loses or refuses: one clear error, never a loop."""

import json
import os
import shutil

import pytest
import torch

import pww.central.final as final_module
import pww.central.kept as kept_module
from pww.central import generations as generations_module
from pww.errors import StateError
from pww.transport.tensorfile import TensorReader


def flip(path, at=-1):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def newest(world):
    return world.merger.published.current.theta.parent


@pytest.fixture
def merged(world, delta_of):
    """Round 1 is closed, and a delta waits."""
    a = world.join("a/x")
    a.deliver(delta_of(1))
    world.merger.maybe_close()
    a.deliver(delta_of(2))
    return world


@pytest.mark.parametrize("file", ["theta", "momentum"])
@pytest.mark.parametrize("at", [-1, 8, 0])
def test_a_damaged_generation_is_refused_at_the_start(merged, file, at):
    flip(newest(merged) / f"{file}.safetensors", at)
    with pytest.raises(StateError, match=r"round-000001 is damaged: .*Restore the state folder"):
        merged.reopen()


def test_a_file_of_another_round_is_refused(merged):
    folder = newest(merged)
    shutil.copy(folder.parent / "round-000000" / "momentum.safetensors", folder)
    with pytest.raises(StateError, match=r"momentum.safetensors has fingerprint .* written was"):
        merged.reopen()
    (folder / "momentum.safetensors").unlink()
    with pytest.raises(StateError, match=r"damaged: .*momentum.safetensors is not there"):
        merged.reopen()


@pytest.mark.parametrize("file", ["theta", "momentum"])
def test_a_large_generation_is_verified_beside(merged, monkeypatch, file):
    """The central opens, and the first that needs theta hears of the damage; so does the loop."""
    monkeypatch.setattr(generations_module, "SMALL_BYTES", 0)
    merged.reopen()
    assert merged.merger.invitation("a/x", "phase")[0].round == 1
    flip(newest(merged) / f"{file}.safetensors")
    for use in (
        lambda: merged.merger.invitation("a/x", "phase"),
        lambda: merged.merger.published.current.theta,
        lambda: merged.merger.maybe_close(),
    ):
        merged.reopen()
        with pytest.raises(StateError, match=r"round-000001 is damaged"):
            use()
    assert merged.books.round == 1


def test_the_final_theta_has_a_name_of_its_own(merged, monkeypatch):
    run = merged.folder
    theta = merged.merger.publish_final(run)
    assert theta == run / "final" / "theta.safetensors"
    assert theta.read_bytes() == merged.merger.published.current.theta.read_bytes()
    told = json.loads((run / "final" / "theta.json").read_text())
    assert told["state_hash"] == merged.books.state_hash
    assert told["round"] == 1
    with TensorReader(theta) as reader:
        assert reader.digest() == told["theta"]["digest"]

    def no_links(*_):
        raise OSError(95, "Operation not supported")

    theta.unlink()
    (run / "final" / "theta.safetensors.part").write_bytes(b"what a crash left")
    monkeypatch.setattr(final_module.os, "link", no_links)
    assert (
        merged.merger.publish_final(run).read_bytes()
        == merged.merger.published.current.theta.read_bytes()
    )
    assert sorted(os.listdir(run / "final")) == ["theta.json", "theta.safetensors"]


def test_a_final_theta_that_cannot_be_written(merged):
    (merged.folder / "final").write_bytes(b"in the way")
    with pytest.raises(StateError, match=r"the final theta could not be written .*its theta is /"):
        merged.merger.publish_final(merged.folder)


def test_there_is_no_final_theta_before_the_first(make_world, tmp_path):
    world = make_world(tmp_path, seeded=False)
    with pytest.raises(StateError, match=r"theta\(0\) has not come yet"):
        world.merger.publish_final(tmp_path)


@pytest.mark.parametrize("links", [True, False])
def test_kept_payloads_outlive_the_merge(make_world, tmp_path, delta_of, monkeypatch, links):
    def no_links(*_):
        raise OSError(95, "Operation not supported")

    if not links:
        monkeypatch.setattr(kept_module.os, "link", no_links)
    world = make_world(tmp_path, keep_deltas=True)
    world.join("a/x").deliver(delta_of(1))
    (name,) = world.payloads()
    payload = (world.state / "deltas" / name).read_bytes()
    theta0 = world.merger.published.current.theta.read_bytes()
    world.merger.maybe_close()
    assert world.payloads() == []
    kept = world.state / "kept"
    assert (kept / "theta0.safetensors").read_bytes() == theta0
    assert (kept / "round-000001" / name).read_bytes() == payload
    assert sorted(os.listdir(kept / "round-000001")) == [name, "round.json"]


def test_nothing_is_kept_unless_asked(merged):
    assert not (merged.state / "kept").exists()


def test_a_disk_without_room_for_what_is_kept(make_world, tmp_path, delta_of, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    world = make_world(tmp_path, keep_deltas=True, seeded=False)
    path = tmp_path / "seed"
    with monkeypatch.context() as patch:
        patch.setattr(kept_module, "sync_folder", full)
        with pytest.raises(StateError, match=r"theta\(0\) could not be written"):
            world.merger.accept_seed(world.seed_message(path), path)
    world.seed()
    world.join("a/x").deliver(delta_of(1))
    with monkeypatch.context() as patch:
        patch.setattr(kept_module, "write_durably", full)
        with pytest.raises(StateError, match=r"round 1 could not be written: .*No space"):
            world.merger.maybe_close()
    assert os.listdir(world.state / "kept") == ["theta0.safetensors"]
    assert (world.books.round, len(world.payloads())) == (0, 1)
    assert world.merger.maybe_close().round == 1


class Crash(BaseException):
    """As if the process had died there."""


@pytest.mark.parametrize("kept", [False, True])
def test_a_death_at_any_fsync_rename_or_commit_leaves_a_round(
    make_world, tmp_path, delta_of, reference, monkeypatch, kept
):
    """Every durable step of a merge in turn is the last one that happens, or the first that does
    not; the next process finds the old round or the new one, and goes on to the same theta.
    """
    reference.merge([delta_of(1), delta_of(2)], tokens=[100, 200])
    at, ends = 0, set()
    while True:
        folder = tmp_path / str(at)
        folder.mkdir()
        world = make_world(folder, keep_deltas=kept)
        a, b = world.join("a/x"), world.join("b/y")
        a.deliver(delta_of(1), tokens=100)
        b.deliver(delta_of(2), tokens=200)
        steps = 0

        def counted(function, at=at):
            def step(*args, **kwargs):
                nonlocal steps
                steps += 1
                if steps == at + 1:
                    raise Crash
                return function(*args, **kwargs)

            return step

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", counted(os.fsync))
            patch.setattr(os, "link", counted(os.link))
            patch.setattr("pathlib.Path.rename", counted(type(folder).rename))
            patch.setattr("pathlib.Path.replace", counted(type(folder).replace))
            patch.setattr("pathlib.Path.unlink", counted(type(folder).unlink))
            patch.setattr(world.ledger, "transaction", counted(world.ledger.transaction))
            try:
                world.merger.maybe_close()
                died = False
            except Crash:
                died = True
        world.reopen()
        ends.add(world.books.round)
        if world.books.round == 0:
            assert world.merger.maybe_close().merged == ("a/x", "b/y")
        assert world.books.round == 1
        assert world.matches(reference)
        assert world.payloads() == []
        assert not list(world.state.rglob("*.part"))
        if kept:
            names = os.listdir(world.state / "kept" / "round-000001")
            assert len(names) == 3
        world.ledger.close()
        if not died:
            break
        at += 1
    assert ends == {0, 1}
    assert at > 8


def test_the_fixture_tells_a_changed_theta(world, reference):
    """The bit-for-bit comparison above sees one bit."""
    assert world.matches(reference)
    reference.theta["scale"] = reference.theta["scale"] + torch.finfo(torch.float32).eps * 4
    assert not world.matches(reference)
