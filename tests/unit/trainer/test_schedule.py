"""The learning rate against its closed form."""

import math
from typing import Any

import pytest
from tiny import tiny_config

from pww.config.schema import Optim
from pww.trainer.schedule import lr_at, phase_lrs


def optim(**over: Any) -> Optim:
    values = {"lr": 2.0, "warmup": 0.2, "decay": "cosine", "min_lr": 0.1, **over}
    return tiny_config({f"optim.{name}": value for name, value in values.items()}).optim


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        (0.0, 0.0),
        (0.05, 0.5),
        (0.1, 1.0),
        (0.2, 2.0),
        (0.6, 2.0 * (0.1 + 0.9 * 0.5)),  # the cosine's middle
        (0.4, 2.0 * (0.1 + 0.9 * 0.5 * (1 + math.sqrt(0.5)))),  # a quarter of its way
        (1.0, 0.2),
        (1.5, 0.2),
        (-1.0, 0.0),
    ],
)
def test_warm_up_and_cosine(progress: float, expected: float) -> None:
    assert lr_at(progress, optim()) == pytest.approx(expected)


def test_constant_after_the_warm_up() -> None:
    flat = optim(decay="constant")
    assert [lr_at(p, flat) for p in (0.1, 0.2, 0.7, 1.0)] == pytest.approx([1.0, 2.0, 2.0, 2.0])


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        (0.1, 1.0), (0.2, 2.0), (0.5, 2.0), (0.75, 2.0),  # the fall is over the last quarter
        (0.875, 2.0 * (0.1 + 0.9 * 0.5)), (0.95, 2.0 * (0.1 + 0.9 * 0.2)), (1.0, 0.2), (1.2, 0.2),
    ],
)  # fmt: skip
def test_wsd_warms_up_stays_and_falls_in_a_line(progress: float, expected: float) -> None:
    assert lr_at(progress, optim(decay="wsd", decay_share=0.25)) == pytest.approx(expected)


def test_wsd_without_a_fall_is_constant() -> None:
    flat = optim(decay="wsd", decay_share=0.0)
    assert [lr_at(p, flat) for p in (0.3, 0.9, 1.0)] == [2.0, 2.0, 2.0]


def test_no_warm_up_starts_at_the_full_rate() -> None:
    assert lr_at(0.0, optim(warmup=0.0)) == 2.0


def test_only_warm_up_never_decays() -> None:
    assert lr_at(0.5, optim(warmup=1.0)) == 1.0
    assert lr_at(1.0, optim(warmup=1.0)) == 2.0


def test_a_phase_takes_the_middle_of_every_step() -> None:
    assert phase_lrs(0.0, 0.2, 2, optim()) == pytest.approx([0.5, 1.5])
    assert phase_lrs(0.0, 0.2, 0, optim()) == []


def test_no_step_is_wasted_at_either_end() -> None:
    rates = phase_lrs(0.0, 1.0, 1000, optim(min_lr=0.0))
    assert min(rates) > 0


def test_cutting_a_phase_in_two_changes_no_rate() -> None:
    whole = phase_lrs(0.1, 0.5, 8, optim())
    parts = phase_lrs(0.1, 0.25, 3, optim()) + phase_lrs(0.25, 0.5, 5, optim())
    assert parts == pytest.approx(whole)


def test_the_mean_rate_is_the_schedules_mean() -> None:
    rates = phase_lrs(0.0, 1.0, 2000, optim())
    # The rise covers a triangle, the cosine its mean of (1 + 0.1) / 2.
    assert sum(rates) / 2000 == pytest.approx(2.0 * (0.2 / 2 + 0.8 * 0.55), rel=1e-5)
