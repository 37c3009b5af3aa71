"""The merge's measurements in closed form, its order, and its memory."""

import math
import os
import subprocess
import sys

import pytest
import torch

from pww.central.generations import Generations, name_of
from pww.central.merge import Overflow, merge, merge_finite
from pww.central.screening import StagedPayload, screen, square_sum
from pww.codec import codec_named
from pww.config import schema
from pww.transport.fingerprint import PIECE
from pww.transport.payload import write_payload

FEDAVG = schema.Outer(optimizer="sgd", lr=1.0, momentum=0.0, solo_full_step=False)


def diloco(outer, *, norm_clip=0.0):
    return schema.Diloco(
        replicas=1, inner_steps=10, phase="fixed", outer=outer, overlap=False, staleness_window=2,
        staleness_discount=0.25, norm_clip=norm_clip, quorum=0.5, grace=0.1,
    )  # fmt: skip


class Bench:
    """A base of zeros and deltas to merge into it."""

    def __init__(self, folder, shapes):
        self.folder, self.shapes = folder, shapes
        self.generations = Generations(folder / "generations")
        with self.generations.draft(0, shapes) as draft:
            for name, shape in shapes.items():
                draft.add(name, theta=torch.zeros(shape), momentum=torch.zeros(shape))
        self.staged = []

    def add(self, replica, tensors, *, delta=None, tokens=100, staleness=0, partial=False):
        delta = delta or f"{len(self.staged) + 1:032x}"
        path = self.folder / delta
        shapes = {name: tuple(t.shape) for name, t in tensors.items()}
        info = write_payload(path, tensors.items(), shapes, codec_named("fp32"))
        self.staged.append(
            StagedPayload(delta, "", replica, path, info, tokens, staleness, partial)
        )

    def merge(self, outer=FEDAVG, *, norm_clip=0.0):
        with screen(self.staged, self.shapes, known={}) as screened:
            base = self.generations.open(name_of(0))
            with self.generations.draft(1, self.shapes) as draft:
                how = diloco(outer, norm_clip=norm_clip)
                result = merge(base, screened.usable, diloco=how, out=draft)
        return result, self.generations.open(name_of(1))


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path, {"a": (2,), "b": ()})


def axis(i):
    flat = torch.zeros(3)
    flat[i] = 2.0
    return {"a": flat[:2].clone(), "b": flat[2].clone()}


def test_orthogonal_deltas_agree_by_one_over_root_k(bench):
    for i in range(3):
        bench.add(f"{i}/x", axis(i))
    result, _ = bench.merge()
    assert result.norms == (2.0, 2.0, 2.0)
    assert result.avg_delta_norm == pytest.approx(2.0)
    assert result.agreement == pytest.approx(1 / math.sqrt(3))
    assert result.delta_norm == pytest.approx(2 / math.sqrt(3))


def test_equal_deltas_agree_fully_even_when_late(bench):
    for i in range(3):
        bench.add(f"{i}/x", axis(1), staleness=i)
    result, _ = bench.merge()
    assert result.agreement == pytest.approx(1.0)
    assert result.avg_delta_norm == pytest.approx(2.0)
    assert result.delta_norm < 2.0  # late ones count less, and nobody else counts more


def test_opposite_deltas_cancel(bench):
    bench.add("a/x", axis(0))
    bench.add("b/x", {name: -t for name, t in axis(0).items()})
    assert bench.merge()[0].agreement == 0.0


def test_deltas_of_zero_agree(bench):
    bench.add("a/x", {name: torch.zeros_like(t) for name, t in axis(0).items()})
    result, _ = bench.merge()
    assert (result.agreement, result.delta_norm, result.avg_delta_norm) == (1.0, 0.0, 0.0)


def test_arrival_order_changes_no_bit(tmp_path):
    shapes = {"w": (1000,)}
    hashes = []
    for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        (tmp_path / str(order)).mkdir()
        bench = Bench(tmp_path / str(order), shapes)
        for i in order:
            generator = torch.Generator().manual_seed(i)
            w = torch.randn(1000, generator=generator)
            bench.add(f"{i}/x", {"w": w}, delta=f"{9 - i:032x}", tokens=100 + i)
        result, generation = bench.merge()
        hashes.append(generation.info.state_hash)
        assert result.merged == tuple(f"{9 - i:032x}" for i in range(3))  # by replica, not by id
    assert len(set(hashes)) == 1


def test_a_norm_is_summed_over_all_blocks():
    x = torch.ones(PIECE + 3)
    assert square_sum(x) == PIECE + 3
    assert square_sum(torch.tensor(-3.0)) == 9.0
    assert square_sum(torch.empty(0)) == 0.0
    noise = torch.randn(300_001, generator=torch.Generator().manual_seed(1))
    exact = float((noise.double() ** 2).sum())
    assert square_sum(noise) == pytest.approx(exact, rel=2e-6)


@pytest.mark.parametrize("value", [1e30, 3e38, 1e-25, 1e-40])
def test_a_norm_has_the_range_of_fp64(value):
    x = torch.full((1000,), value)
    exact = float((x.double() ** 2).sum())
    assert square_sum(x) == pytest.approx(exact, rel=1e-9)
    assert square_sum(torch.tensor([value, 1.0])) == pytest.approx(1.0 + value**2, rel=1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_square_sum_is_finite_exactly_if_every_value_is(value):
    for at in (0, 65_535, 65_536, 99_999):
        x = torch.full((100_000,), 3e38)
        assert math.isfinite(square_sum(x))
        x[at] = value
        assert not math.isfinite(square_sum(x))


def test_the_delta_that_is_largest_where_it_overflows_is_to_blame(bench):
    bench.add("a/x", {"a": torch.tensor([1e30, 0.0]), "b": torch.tensor(1.0)})
    bench.add("b/y", {"a": torch.zeros(2), "b": torch.tensor(3e38)})
    bench.add("c/z", {"a": torch.zeros(2), "b": torch.tensor(1e38)})
    outer = FEDAVG.model_copy(update={"lr": 3.0})
    with pytest.raises(Overflow, match="make theta not finite: tensor b") as caught:
        bench.merge(outer)
    assert caught.value.delta == bench.staged[1].delta
    assert os.listdir(bench.folder / "generations") == ["round-000000"], "nothing of it is left"
    with screen(bench.staged, bench.shapes, known={}) as screened:
        base = bench.generations.open(name_of(0))
        result, screened = merge_finite(
            base, screened, number=1, generations=bench.generations, diloco=diloco(outer)
        )
    assert result.merged == tuple(bench.staged[i].delta for i in (0, 2))
    assert [one.replica for one in screened.excluded] == ["b/y"]


MEMORY = """
import sys
from pathlib import Path
import torch
sys.path.insert(0, {folder!r})
from test_merge_laws import (
    FEDAVG, Bench, StagedPayload, diloco, codec_named, merge_finite, name_of, screen, write_payload
)
torch.set_num_threads(1)
shapes = {{f"w{{i}}": ({size} // 4,) for i in range({num})}}
bench = Bench(Path(sys.argv[1]), shapes)
for replica, value in (("a/x", 1.0), ("b/x", {value})):
    delta = f"{{len(bench.staged) + 1:032x}}"
    path = bench.folder / delta
    tensors = ((name, torch.full(shape, value)) for name, shape in shapes.items())
    info = write_payload(path, tensors, shapes, codec_named("fp32"))
    bench.staged.append(StagedPayload(delta, "", replica, path, info, 100, 0, False))
Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again here
start = [int(l.split()[1]) for l in Path("/proc/self/status").open() if l.startswith("VmRSS")][0]
with screen(bench.staged, shapes, known={{}}) as screened:
    result, _ = merge_finite(
        bench.generations.open(name_of(0)), screened, number=1, generations=bench.generations,
        diloco=diloco(FEDAVG.model_copy(update=dict(optimizer="nesterov", momentum=0.9, lr=3.0))),
    )
assert len(result.merged) == {merged}
peak = [int(l.split()[1]) for l in Path("/proc/self/status").open() if l.startswith("VmHWM")][0]
print((peak - start) * 1024)
"""


@pytest.mark.parametrize(("value", "merged"), [(1.0, 2), (3.4e38, 1)])
def test_memory_follows_the_largest_tensor_and_not_the_model(tmp_path, value, merged):
    size, num = 4 << 20, 28
    done = subprocess.run(
        [
            sys.executable, "-c",
            MEMORY.format(
                folder=__file__.rsplit("/", 1)[0], size=size, num=num, value=value, merged=merged
            ),
            str(tmp_path),
        ],
        capture_output=True, text=True, timeout=240, check=True,
    )  # fmt: skip
    assert int(done.stdout) < 3 * size + 100_000_000 < num * size
