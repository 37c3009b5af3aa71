"""The way down: theta is what the encoded updates make of it, at the central and at a site."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from pww.central.beside import choose
from pww.central.generations import Generations, name_of
from pww.central.merge import merge
from pww.central.screening import StagedPayload, inspect, screen
from pww.central.updates import Updates
from pww.codec import codec_named
from pww.config.load import compose
from pww.errors import PayloadError, StateError
from pww.transport.fingerprint import PIECE
from pww.transport.payload import PayloadReader, write_payload
from pww.transport.tensorfile import TensorReader, state_hash
from pww.transport.update import apply_update
from pww.wire import model_digest

F = np.float32
DOWN = codec_named("int8")
LARGE = {"long": (2 * PIECE + 4099,), "flat": (3, 5), "empty": (0,), "scalar": ()}


def bits(x) -> np.ndarray:
    return np.asarray(x, dtype=F).reshape(-1).view(np.uint32)


def read(path: Path, names) -> dict[str, np.ndarray]:
    with TensorReader(path) as reader:
        return {name: reader.get(name).numpy() for name in names}


def some(shapes, seed: int, scale: float = 1.0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {n: torch.randn(s, generator=generator) * scale for n, s in shapes.items()}


@pytest.mark.parametrize("kind", ["int8", "bf16", "fp32"])
def test_three_rounds_of_the_pinned_lines_in_numpy(tmp_path: Path, kind: str, monkeypatch) -> None:
    """theta', v, q, e and theta as diloco.md pins them; q is what the update's file decodes to."""
    monkeypatch.setattr("pww.central.draft.SMALL_BYTES", 0)  # with threads
    down = codec_named(kind)
    generations = Generations(tmp_path / "generations")
    start = some(LARGE, 0)
    with generations.draft(0, LARGE) as draft:
        for name, theta in start.items():
            draft.add(name, theta=theta, momentum=torch.zeros_like(theta))
    theta = {n: t.numpy().copy() for n, t in start.items()}
    momentum = {n: np.zeros_like(t) for n, t in theta.items()}
    residual = {n: np.zeros_like(t) for n, t in theta.items()}
    exact = {n: t.copy() for n, t in theta.items()}
    diloco = compose([]).diloco
    for number in (1, 2, 3):
        delta = some(LARGE, number, 1e-2)
        path = tmp_path / f"{number:032x}"
        info = write_payload(path, delta.items(), LARGE, codec_named("fp32"))
        staged = StagedPayload(path.name, "", "a/x", path, info, 10, 0, False)
        base = generations.open(name_of(number - 1))
        with (
            screen([staged], LARGE, known={path.name: inspect(path, info, LARGE)}) as screened,
            generations.draft(number, LARGE, down=down) as out,
        ):
            merge(base, screened.usable, diloco=diloco, out=out, down=down)
        made = generations.open(name_of(number))
        assert made.info.update is not None
        assert made.residual is not None
        now, left = read(made.theta, LARGE), read(made.residual, LARGE)
        with PayloadReader(made.update, made.info.update) as update:
            steps = {name: update.tensor(name).numpy() for name in LARGE}
        for name in LARGE:
            d = delta[name].numpy()
            m = momentum[name] * F(0.9)
            m = m + d
            u = m * F(0.9)
            u = d + u
            u = u * F(0.7)
            stepped = theta[name] - u
            v = theta[name] - stepped
            v = v + residual[name]
            q = steps[name]
            residual[name] = v - q
            theta[name] = theta[name] - q
            momentum[name] = m
            exact[name] = exact[name] - u
            assert (bits(theta[name]) == bits(now[name])).all(), name
            assert (bits(residual[name]) == bits(left[name])).all(), name
            # what sites have differs from the exact run by the residual, round after round
            assert np.allclose(theta[name] - residual[name], exact[name], atol=3e-6), name
        site = tmp_path / f"site-{number}"
        found = apply_update(base.theta, made.update, made.info.update, site)
        assert found == made.info.state_hash == state_hash(made.theta)
        assert site.read_bytes() == made.theta.read_bytes()
    assert (np.abs(residual["long"]).max() > 0) == (kind != "fp32")


def test_an_update_of_another_model_is_refused(tmp_path: Path) -> None:
    base, update = tmp_path / "base", tmp_path / "update"
    shapes = {"w": (3,)}
    with Generations(tmp_path / "g").draft(0, shapes) as draft:
        draft.add("w", theta=torch.ones(3), momentum=torch.ones(3))
    shutil.copy(tmp_path / "g" / "round-000000" / "theta.safetensors", base)
    info = write_payload(update, [("v", torch.ones(3))], {"v": (3,)}, DOWN)
    with pytest.raises(PayloadError, match="update is the update of another model than base"):
        apply_update(base, update, info, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------------- in the aggregator


@pytest.fixture
def make_world(make_world, monkeypatch):
    """Worlds of a model whose update is much smaller than its theta."""
    known = make_world.open.__globals__
    shapes = {"w": (40, 50), "b": (7,)}
    monkeypatch.setitem(known, "SHAPES", shapes)
    monkeypatch.setitem(known, "MODEL", model_digest(shapes))
    return make_world


def rounds(world, delta_of, count: int) -> None:
    site = world.join("a/x", "a" * 32)
    for number in range(count):
        site.deliver(delta_of(number + 1), tokens=100)
        assert world.merger.maybe_close() is not None


def test_an_invitation_names_the_updates_that_lead_to_theta(tmp_path, make_world, delta_of) -> None:
    world = make_world(tmp_path, down=DOWN)
    assert world.merger.invitation("a/x", "phase")[0].updates == ()
    rounds(world, delta_of, 3)
    told, path = world.merger.invitation("a/x", "phase")
    assert (told.beside, path) == ("theta", world.merger.published.current.theta)
    assert [one.round for one in told.updates] == [1, 2, 3]
    assert told.updates[-1].state_hash == told.state_hash
    whole = told.payload.size_bytes
    assert sum(one.payload.size_bytes for one in told.updates) < whole
    for one in told.updates:
        PayloadReader(world.merger.published.update_path(one), one.payload).close()


def test_a_restart_goes_on_with_the_residual_and_the_chain(tmp_path, make_world, delta_of) -> None:
    """Bit for bit what the same rounds give without a restart."""
    for name in ("straight", "broken"):
        (tmp_path / name).mkdir()
    straight = make_world(tmp_path / "straight", down=DOWN)
    rounds(straight, delta_of, 4)
    broken = make_world(tmp_path / "broken", down=DOWN)
    site = broken.join("a/x", "a" * 32)
    for number in range(4):
        site.deliver(delta_of(number + 1), tokens=100)
        assert broken.merger.maybe_close() is not None
        broken.reopen()
    assert broken.books.state_hash == straight.books.state_hash
    chain = broken.merger.invitation("a/x", "phase")[0].updates
    assert chain == straight.merger.invitation("a/x", "phase")[0].updates
    residual = broken.merger.published.current.residual
    assert residual.read_bytes() == straight.merger.published.current.residual.read_bytes()


def test_a_damaged_residual_is_found_at_the_start(tmp_path, make_world, delta_of) -> None:
    world = make_world(tmp_path, down=DOWN)
    rounds(world, delta_of, 1)
    path = world.merger.published.current.residual
    assert path in world.merger.needed()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(StateError, match=r"damaged: .*residual.safetensors has fingerprint"):
        world.reopen()


def test_a_broken_chain_is_dropped_and_theta_goes_whole(tmp_path, make_world, delta_of) -> None:
    world = make_world(tmp_path, down=DOWN)
    rounds(world, delta_of, 3)
    folder = world.state / "updates"
    link = json.loads((folder / "round-000002.json").read_text())
    link["update"]["state_hash"] = "0" * 64
    (folder / "round-000002.json").write_text(json.dumps(link))
    world.reopen()
    assert [one.round for one in world.merger.invitation("a/x", "phase")[0].updates] == [3]
    assert sorted(path.name for path in folder.iterdir()) == [
        "round-000003.json", "round-000003.payload",
    ]  # fmt: skip
    (folder / "round-000003.payload").write_bytes(b"short")
    world.reopen()
    told, path = world.merger.invitation("a/x", "phase", holds=2)
    assert (told.updates, told.beside, path) == ((), "theta", world.merger.published.current.theta)


def test_the_chain_stays_smaller_than_theta(tmp_path, make_world, delta_of, monkeypatch) -> None:
    world = make_world(tmp_path, down=DOWN)
    rounds(world, delta_of, 12)
    told, _ = world.merger.invitation("a/x", "phase")
    total = sum(one.payload.size_bytes for one in told.updates)
    assert total < told.payload.size_bytes <= total + told.updates[0].payload.size_bytes
    assert [one.round for one in told.updates] == list(range(13 - len(told.updates), 13))
    monkeypatch.setattr("pww.central.updates.MAX_UPDATES", 2)
    world.reopen()
    assert [one.round for one in world.merger.invitation("a/x", "phase")[0].updates] == [11, 12]


def test_a_disk_that_refuses_the_link_costs_the_chain_only(
    tmp_path, make_world, delta_of, monkeypatch, caplog
) -> None:
    world = make_world(tmp_path, down=DOWN)
    rounds(world, delta_of, 2)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pww.central.updates.write_durably", full)
    site = world.join("b/y")
    site.deliver(delta_of(9), tokens=100)
    assert world.merger.maybe_close() is not None
    assert "the update of round 3 is not kept" in caplog.text
    assert world.merger.invitation("a/x", "phase")[0].updates == ()


def test_without_a_down_codec_there_are_no_updates(world, delta_of) -> None:
    rounds(world, delta_of, 2)
    told, _ = world.merger.invitation("a/x", "phase", holds=1)
    assert (told.updates, told.beside) == ((), "theta")
    assert world.merger.published.current.residual is None


def test_a_restart_without_the_codec_sends_what_was_left_behind(
    tmp_path, make_world, delta_of
) -> None:
    """theta is then what it would be if nothing had ever been encoded, to rounding."""
    for name in ("whole", "mixed"):
        (tmp_path / name).mkdir()
    whole = make_world(tmp_path / "whole")
    rounds(whole, delta_of, 3)
    mixed = make_world(tmp_path / "mixed", down=DOWN)
    site = mixed.join("a/x", "a" * 32)
    for number in range(3):
        if number == 2:
            mixed.publishing["down"] = None
            mixed.reopen()
        site.deliver(delta_of(number + 1), tokens=100)
        assert mixed.merger.maybe_close() is not None
    here, there = (read(w.merger.published.current.theta, ["w"])["w"] for w in (mixed, whole))
    assert np.allclose(here, there, atol=2e-6)
    assert not read(mixed.merger.published.current.residual, ["w"])["w"].any()
    assert mixed.merger.invitation("a/x", "phase", holds=2)[0].beside == "theta"


class Shelf:
    """A shelf that remembers."""

    def __init__(self) -> None:
        self.files: dict[str, Path] = {}

    def publish(self, info, path) -> None:
        assert path.stat().st_size == info.size_bytes
        self.files[info.digest] = path

    retries = 0

    def has(self, info) -> bool:
        return info.digest in self.files

    def withdraw(self, info) -> None:
        del self.files[info.digest]


@pytest.mark.parametrize(
    ("holds", "inline", "downloads", "beside"),
    [
        (3, 10**9, True, "nothing"),  # has it
        (2, 10**9, True, "update"),
        (2, 1, True, "nothing"),  # too large for a message: downloads it
        (2, 1, False, "update"),  # nobody offers that
        (1, 10**9, True, "nothing"),  # two updates are downloaded
        (1, 10**9, False, "theta"),
        (-1, 10**9, True, "theta"),
        (-1, 1, True, "nothing"),
        (-1, 1, False, "theta"),
        (4, 10**9, False, "theta"),  # a round that never was
    ],
)
def test_which_file_lies_beside(tmp_path, make_world, delta_of, holds, inline, downloads, beside):
    world = make_world(tmp_path, down=DOWN)
    rounds(world, delta_of, 3)
    found, path = choose(
        world.merger.published, holds=holds, inline_bytes=inline, downloads=downloads
    )
    assert found == beside
    assert (path is None) == (beside == "nothing")


def test_on_the_shelf_is_what_is_current_and_one_theta_more(tmp_path, make_world, delta_of) -> None:
    shelf = Shelf()
    world = make_world(tmp_path, down=DOWN, shelf=shelf)
    rounds(world, delta_of, 6)
    before = world.merger.published.generations.open("round-000005").info.theta.digest
    told, path = world.merger.invitation("a/x", "phase")
    assert (told.beside, path) == ("nothing", None)
    wanted = {told.payload.digest, *(one.payload.digest for one in told.updates)}
    assert shelf.files.keys() == wanted | {before}, "and what somebody may be in the middle of"
    assert all(path.exists() for path in shelf.files.values())
    shelf.files.clear()
    world.publishing["shelf"] = shelf
    world.reopen()
    assert shelf.files.keys() == wanted


def test_updates_of_another_folder_are_not_touched(tmp_path) -> None:
    folder = tmp_path / "updates"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    assert Updates(folder).chain == ()
    assert (folder / "notes.txt").exists()
