"""Every merge rule keeps the same promises: shape, symmetry, and what it withstands."""

import itertools

import pytest
import torch

from pww.config.schema.lab import Clipped, Geometric, Krum, Mean, Median, Trimmed
from pww.lab.exchange import equal
from pww.outer.merge import merged

RULES = {
    "mean": Mean(kind="mean"),
    "median": Median(kind="median"),
    "trimmed": Trimmed(kind="trimmed", trim=2),
    "clipped": Clipped(kind="clipped", limit=1.0),
    "geometric": Geometric(kind="geometric", iterations=200),
    "krum": Krum(kind="krum", attackers=2),
}
ROBUST = ("median", "trimmed", "geometric", "krum")
SHIFTED = tuple(name for name in RULES if name != "clipped")
"""Clipping measures from zero, so only the others move with their rows."""


def rows(workers: int = 7, size: int = 40, seed: int = 0) -> torch.Tensor:
    return torch.randn(workers, size, generator=torch.Generator().manual_seed(seed))


def merge(name: str, values: torch.Tensor) -> torch.Tensor:
    return merged(values, equal(len(values)), RULES[name])


def near(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", RULES)
def test_one_fp32_vector_and_the_rows_as_they_were(name: str) -> None:
    values = rows()
    before = values.clone()
    found = merge(name, values)
    assert (found.dtype, tuple(found.shape)) == (torch.float32, (40,))
    assert torch.equal(values, before)
    found.add_(1.0)
    assert torch.equal(values, before)  # no memory is shared


@pytest.mark.parametrize("name", RULES)
def test_equal_rows_are_merged_to_themselves(name: str) -> None:
    values = rows(1).expand(8, -1).contiguous()  # an eighth is exact
    assert near(merge(name, values), values[0])


@pytest.mark.parametrize("name", RULES)
def test_the_order_of_workers_makes_no_difference(name: str) -> None:
    values = rows()
    assert near(merge(name, values), merge(name, values[torch.tensor([3, 6, 0, 2, 5, 1, 4])]))


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("factor", [-2.0, 0.125])
def test_scaled_rows_give_the_scaled_vector(name: str, factor: float) -> None:
    values = rows()
    assert near(merge(name, values * factor), merge(name, values) * factor)


@pytest.mark.parametrize("name", SHIFTED)
def test_shifted_rows_give_the_shifted_vector(name: str) -> None:
    values, shift = rows(), torch.linspace(-3, 3, 40)
    assert near(merge(name, values + shift), merge(name, values) + shift)


@pytest.mark.parametrize("name", RULES)
def test_of_zeros_comes_zero(name: str) -> None:
    assert torch.equal(merge(name, torch.zeros(7, 5)), torch.zeros(5))


@pytest.mark.parametrize("name", ROBUST)
def test_two_of_seven_cannot_move_it_far(name: str) -> None:
    values = rows()
    values[5:] = 1e6
    assert float(merge(name, values).norm()) < 3 * float(rows().norm(dim=1).max())


def test_two_of_seven_move_the_mean_as_far_as_they_like() -> None:
    values = rows()
    values[5:] = 1e6
    assert float(merge("mean", values).abs().min()) > 1e5


@pytest.mark.parametrize("name", ["mean", "clipped"])
def test_weights_count(name: str) -> None:
    values = torch.stack([torch.ones(3), -torch.ones(3)])
    found = merged(values, [0.75, 0.25], RULES[name])
    assert torch.equal(found, torch.full((3,), 0.5))


def test_the_geometric_median_has_the_least_sum_of_distances() -> None:
    values = rows(5, 2)
    found = merge("geometric", values).double()

    def total(point: torch.Tensor) -> float:
        return float((values.double() - point).norm(dim=1).sum())

    least = total(found)
    steps = [torch.tensor(s, dtype=torch.float64) for s in itertools.product((-1, 0, 1), repeat=2)]
    assert all(total(found + 1e-3 * step) >= least - 1e-9 for step in steps)


def test_krum_by_brute_force() -> None:
    values = rows(7, 3, seed=4)
    scores = []
    for i in range(7):
        apart = sorted(float((values[i] - values[j]).square().sum()) for j in range(7) if j != i)
        scores.append(sum(apart[: 7 - 2 - 2]))
    assert torch.equal(merge("krum", values), values[scores.index(min(scores))])


def test_median_and_trimmed_mean_against_sorted_lists() -> None:
    values = rows(6, 9)
    for column in range(9):
        ordered = sorted(values[:, column].tolist())
        assert float(merge("median", values)[column]) == pytest.approx(sum(ordered[2:4]) / 2)
        assert float(merge("trimmed", values)[column]) == pytest.approx(sum(ordered[2:4]) / 2)
    odd = rows(5, 9)
    assert torch.equal(merge("median", odd), odd.median(0).values)


def test_clipping_limits_norms_to_the_median_norm() -> None:
    values = torch.diag(torch.tensor([1.0, 2.0, 10.0]))
    found = merge("clipped", values)
    assert found.tolist() == pytest.approx([1 / 3, 2 / 3, 2 / 3])


def test_the_mean_is_to_the_bit_what_numpy_adds() -> None:
    import numpy as np

    values = rows(4)
    shares = [0.1, 0.2, 0.3, 0.4]
    total = values[0].numpy() * np.float32(0.1)
    for row, share in zip(values[1:], shares[1:], strict=True):
        total = total + row.numpy() * np.float32(share)
    assert np.array_equal(merged(values, shares, RULES["mean"]).numpy(), total)
