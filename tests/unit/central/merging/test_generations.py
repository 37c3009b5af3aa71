"""Generations are complete or absent, and immutable in content once they have a name."""

import json

import pytest
import torch

from pww.central.generations import Generations, name_of
from pww.errors import PayloadError, StateError
from pww.transport.tensorfile import TensorReader, state_hash

SHAPES = {"a": (2,), "b": ()}


def write(generations, round_, value=1.0):
    with generations.draft(round_, SHAPES) as draft:
        for name, shape in SHAPES.items():
            full = torch.full(shape, value)
            draft.add(name, theta=full, momentum=-full)
    return generations.open(name_of(round_))


def test_a_generation_holds_what_was_added(tmp_path):
    generation = write(Generations(tmp_path / "g"), 3)
    assert (generation.name, generation.info.round) == ("round-000003", 3)
    assert generation.info.state_hash == state_hash(generation.theta)
    with TensorReader(generation.theta) as theta, TensorReader(generation.momentum) as momentum:
        assert theta.names == momentum.names == ("a", "b")
        assert (theta.get("b").item(), momentum.get("b").item()) == (1.0, -1.0)
        assert generation.info.theta.size_bytes == theta.size_bytes
        assert generation.info.theta.digest == theta.digest()
    told = json.loads((generation.path / "generation.json").read_text())
    assert (told["round"], told["state_hash"]) == (3, generation.info.state_hash)
    assert sorted(p.name for p in generation.path.iterdir()) == [
        "generation.json", "momentum.safetensors", "theta.safetensors",
    ]  # fmt: skip


def test_a_fault_leaves_nothing(tmp_path):
    generations = Generations(tmp_path)

    def attempt(*names):
        with generations.draft(1, SHAPES) as draft:
            for name in names:
                draft.add(name, theta=torch.zeros(SHAPES[name]), momentum=torch.zeros(2))

    with pytest.raises(PayloadError, match="tensor b was announced and never came"):
        attempt("a")
    with pytest.raises(PayloadError, match="tensor b comes where a was announced"):
        attempt("b")
    assert list(tmp_path.iterdir()) == []


def test_a_leftover_of_the_same_name_is_replaced(tmp_path):
    generations = Generations(tmp_path)
    write(generations, 1, 5.0)
    (tmp_path / "round-000001.part").mkdir()
    (tmp_path / "round-000001.part" / "x").write_bytes(b"x")
    generation = write(generations, 1, 6.0)
    with TensorReader(generation.theta) as theta:
        assert theta.get("b").item() == 6.0
    assert [p.name for p in tmp_path.iterdir()] == ["round-000001"]


def test_collecting_keeps_what_is_named_and_touches_nothing_else(tmp_path):
    generations = Generations(tmp_path)
    for round_ in range(4):
        write(generations, round_)
    (tmp_path / "round-000009.part").mkdir()
    (tmp_path / "notes").mkdir()
    generations.collect(keep={"round-000002", "round-000003"})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes", "round-000002", "round-000003"]


@pytest.mark.parametrize("name", ["", "../x", "round-1", "round-000001.part", "round-000001\n"])
def test_names_do_not_leave_the_folder(tmp_path, name):
    with pytest.raises(StateError, match="is not a name like round-000003"):
        Generations(tmp_path).path(name)


@pytest.mark.parametrize("text", [None, "", "{}", '{"round": 1}'])
def test_an_incomplete_generation_is_told(tmp_path, text):
    generations = Generations(tmp_path)
    (tmp_path / "round-000001").mkdir()
    if text is not None:
        (tmp_path / "round-000001" / "generation.json").write_text(text)
    with pytest.raises(StateError, match=r"cannot be read .*: restore the state folder"):
        generations.open("round-000001")


def test_theta_without_its_ledger_is_neither_served_nor_swept(world, delta_of):
    world.join("a/x").deliver(delta_of(1))
    assert world.merger.maybe_close() is not None
    world.ledger.close()
    for path in world.state.glob("ledger.sqlite*"):
        path.unlink()
    with pytest.raises(StateError, match=r"generations holds round-000001, but the ledger knows"):
        world.open()
    assert (world.state / "generations" / "round-000001" / "theta.safetensors").is_file()
