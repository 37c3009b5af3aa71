"""Intervals against scipy's and against their own promise; quantities; verdicts."""

import math
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from lab_runs import cell_runs

from pww.errors import LabError
from pww.lab.report.agreement import excess_ratio, ordered, r_squared
from pww.lab.report.cells import Cell, axes, cells_of, find, shown
from pww.lab.report.interval import Interval, interval, mapped
from pww.lab.report.quantity import difference, measured, ratio
from pww.lab.report.verdict import judge
from pww.lab.study import read_study

INF = math.inf


@pytest.mark.parametrize("num", [2, 3, 5, 11])
def test_the_interval_is_students(num: int) -> None:
    values = np.random.default_rng(num).normal(2.0, 0.3, num)
    found = interval(values.tolist())
    low, high = scipy.stats.t.interval(
        0.95, num - 1, loc=values.mean(), scale=scipy.stats.sem(values)
    )
    assert found.mean == pytest.approx(values.mean(), rel=1e-12)
    assert found.sd == pytest.approx(values.std(ddof=1), rel=1e-12)
    assert (found.low, found.high, found.num) == pytest.approx((low, high, num), rel=1e-9)


def test_three_seeds_hold_the_truth_in_95_of_100_studies() -> None:
    draws = np.random.default_rng(0).normal(0.0, 1.0, (4000, 3))
    inside = sum(of.low <= 0.0 <= of.high for of in map(interval, draws.tolist()))
    assert abs(inside / 4000 - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 4000)


@pytest.mark.parametrize(
    ("values", "mean", "low", "high"),
    [
        ([2.0], 2.0, -INF, INF),
        ([2.0, 2.0], 2.0, 2.0, 2.0),
        ([INF, INF], INF, INF, INF),
        ([2.0, INF], INF, 2.0, INF),
        ([INF], INF, -INF, INF),
        ([-INF, -INF], -INF, -INF, -INF),
    ],
)
def test_one_seed_knows_nothing_and_infinity_is_kept(
    values: list[float], mean: float, low: float, high: float
) -> None:
    found = interval(values)
    assert (found.mean, found.low, found.high) == (mean, low, high)
    assert found.is_known


@pytest.mark.parametrize("values", [[], [math.nan], [1.0, math.nan]])
def test_what_is_unknown_stays_unknown(values: list[float]) -> None:
    assert not interval(values).is_known


def test_a_function_of_an_interval_is_that_of_its_ends() -> None:
    of = mapped(interval([0.0, 1.0, 2.0]), math.exp)
    assert of.mean == pytest.approx(math.e)
    assert of.low < of.mean < of.high
    assert mapped(interval([0.0]), math.exp).low == 0.0


def known(low: float, high: float, num: int = 3) -> Interval:
    return Interval((low + high) / 2, 0.1, low, high, num)


@pytest.mark.parametrize(
    ("found", "verdict", "why"),
    [
        (known(0.2, 0.4), "confirmed", ""),
        (known(0.1, 0.5), "confirmed", ""),
        (known(0.6, 0.7), "refuted", ""),
        (known(-0.7, 0.05), "refuted", ""),
        (known(0.4, 0.6), "inconclusive", "the intervals overlap"),
        (known(-9.0, 9.0), "inconclusive", "the intervals overlap"),
        (interval([0.3]), "inconclusive", "one seed has no interval"),
        (interval([INF, INF]), "refuted", ""),
        (interval([0.3, INF]), "inconclusive", "the intervals overlap"),
        (interval([math.nan, 0.3]), "inconclusive", "both diverged"),
    ],
)
def test_the_verdict_on_between_a_tenth_and_a_half(found: Interval, verdict: str, why: str) -> None:
    assert judge(0.1, 0.5, found) == (verdict, why)


def test_a_side_may_be_open() -> None:
    assert judge(0.5, INF, interval([INF, INF]))[0] == "confirmed"
    assert judge(-INF, 0.0, known(-0.3, -0.1))[0] == "confirmed"
    assert judge(INF, INF, known(0.1, 0.2))[0] == "refuted"


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return tmp_path / "s"


def cells(study: Path) -> list[Cell]:
    return cells_of(read_study(study).runs)


def test_two_cells_are_compared_seed_by_seed(study: Path) -> None:
    """What the seeds have in common, here nearly all, cancels."""
    base = [2.0, 3.0, 1.0, 5.0]
    cell_runs(study, {"codec": "fp32"}, base)
    cell_runs(
        study, {"codec": "topk"}, [x + d for x, d in zip(base, (0.1, 0.2, 0.3), strict=False)]
    )
    one, other = find(cells(study), "codec=topk"), find(cells(study), "codec=fp32")
    found = difference(one, other)
    assert found.mean == pytest.approx(0.2)
    assert found.sd == pytest.approx(0.1)
    assert found.num == 3
    assert other.loss.sd > 1.0


def test_a_ratio_is_geometric(study: Path) -> None:
    cell_runs(study, {"codec": "fp32"}, [1.0, 2.0])
    cell_runs(study, {"codec": "topk"}, [2.0, 16.0])
    all_cells = cells(study)
    found = ratio(find(all_cells, "codec=topk"), find(all_cells, "codec=fp32"))
    assert found.mean == pytest.approx(4.0)
    assert found.low * found.high == pytest.approx(16.0)
    of = measured(all_cells, "loss_ratio", cell="codec=topk", against="codec=fp32")
    assert of == found


def test_quantities_of_one_cell(study: Path) -> None:
    cell_runs(study, {"codec": "fp32"}, [1.0, 2.0])
    cell_runs(study, {"codec": "topk"}, [2.0])
    cell_runs(study, {"codec": "int4"}, [math.nan, math.nan], diverged=True)
    all_cells = cells(study)
    assert measured(all_cells, "loss", cell="codec=fp32", against="none").mean == 1.5
    shares = [
        measured(all_cells, "diverged", cell=cell, against="none")
        for cell in ("codec=fp32", "codec=int4")
    ]
    assert [(of.mean, of.low, of.high) for of in shares] == [(0.0, 0.0, 0.0), (1.0, 1.0, 1.0)]
    apart = measured(all_cells, "loss_difference", cell="codec=int4", against="codec=fp32")
    assert apart.low == INF


def test_what_does_not_compare_is_refused(study: Path) -> None:
    cell_runs(study, {"codec": "fp32"}, [1.0, 2.0])
    cell_runs(study, {"task": "quadratic"}, [1.0], task="quadratic")
    cell_runs(study, {"codec": "int4"}, [-1.0])
    cell_runs(study, {"codec": "topk"}, [1.0, 2.0], first=7)
    all_cells = cells(study)
    base = find(all_cells, "codec=fp32")
    with pytest.raises(LabError, match=r"is of task quadratic, .* of charlm: their losses do not"):
        difference(find(all_cells, "task=quadratic"), base)
    with pytest.raises(LabError, match=r"codec=topk and codec=fp32 have no seed in common; run"):
        difference(find(all_cells, "codec=topk"), base)
    with pytest.raises(LabError, match="a ratio wants losses above zero, and there is -1"):
        ratio(find(all_cells, "codec=int4"), base)
    with pytest.raises(LabError, match="a line wants three cells or more, and a place for each"):
        r_squared(base, [base, base], (1.0, 2.0))
    with pytest.raises(LabError, match="the cells have no seed in common"):
        r_squared(base, [find(all_cells, "codec=topk")] * 3, (1.0, 2.0, 3.0))


def test_cells_are_found_by_what_tells_them_apart(study: Path) -> None:
    same = {"lab.steps": 100, "workers": 4}
    for h in (1, 16):
        cell_runs(study, {"diloco.inner_steps": h, **same}, [1.0, 2.0])
    cell_runs(study, {**same}, [3.0])
    all_cells = cells(study)
    assert sorted(cell.label for cell in all_cells) == ["H=1", "H=16", "base"]
    assert axes(all_cells) == ["diloco.inner_steps"]
    assert find(all_cells, "base").loss.mean == 3.0
    assert find(all_cells, "steps=100,H=16,workers=4").label == "H=16"
    with pytest.raises(
        LabError, match=r"no finished run of the cell H=4; there are H=1, H=16, base"
    ):
        find(all_cells, "H=4")
    with pytest.raises(LabError, match="no finished run of the cell workers=8"):
        find(all_cells, "workers=8")


def test_the_tuned_rate_stands_for_the_cell_and_others_can_be_asked_for(study: Path) -> None:
    for lr, loss in ((1e-3, 2.0), (3e-3, 1.0), (1e-2, 3.0)):
        kind = {"tuned": True} if lr == 3e-3 else {"candidate": True}
        cell_runs(study, {"codec": "fp32"}, [loss, loss], lr=lr, **kind)
    all_cells = cells(study)
    assert len(all_cells) == 3
    assert [cell.lr for cell in shown(all_cells)] == [3e-3]
    assert find(all_cells, "codec=fp32").loss.mean == 1.0
    assert find(all_cells, "codec=fp32@1e-2").loss.mean == 3.0
    assert find(all_cells, "codec=fp32@0.001").name == "codec=fp32@0.001"
    with pytest.raises(LabError, match="fast is no learning rate"):
        find(all_cells, "codec=fp32@fast")
    with pytest.raises(LabError, match=r"there are codec=fp32@0.001, codec=fp32, codec=fp32@0.01"):
        find(all_cells, "codec=fp32@5")


def test_untuned_at_two_rates_is_ambiguous(study: Path) -> None:
    cell_runs(study, {"codec": "fp32"}, [1.0], lr=1e-3)
    cell_runs(study, {"codec": "fp32"}, [2.0], lr=1e-2)
    with pytest.raises(LabError, match=r"is several cells: .*@0.001 \(charlm\), .*say which rate"):
        find(cells(study), "codec=fp32")


def test_a_line_through_exact_points_and_through_noise(study: Path) -> None:
    at = (2.0, 4.0, 8.0, 16.0)
    rng = np.random.default_rng(1)
    base = rng.normal(2.0, 0.5, 4)
    cell_runs(study, {"codec": "fp32"}, base.tolist())
    losses = {}
    for keep, x in zip((2048, 1024, 512, 256), at, strict=True):
        losses[keep] = base + 0.01 * x + rng.normal(0, 0.01, 4)
        cell_runs(study, {"codec": "randomk", "codec.keep": keep}, losses[keep].tolist())
        cell_runs(study, {"codec": "exact", "codec.keep": keep}, (base + 0.01 * x).tolist())
    all_cells = cells(study)
    dense = find(all_cells, "codec=fp32")
    noisy = [find(all_cells, f"codec=randomk,keep={keep}") for keep in losses]
    exact = [find(all_cells, f"codec=exact,keep={keep}") for keep in losses]
    assert r_squared(dense, exact, at).low == pytest.approx(1.0)
    found = r_squared(dense, noisy, at)
    excess = [(losses[keep] - base).mean() for keep in losses]
    assert found.mean == pytest.approx(scipy.stats.linregress(at, excess).rvalue ** 2)
    assert found.low <= found.mean <= found.high < 1.0
    cell_runs(study, {"codec": "sign"}, [math.inf] * 4, diverged=True)
    with pytest.raises(LabError, match="a cell diverged: there is no line through infinity"):
        r_squared(dense, [*noisy[:2], find(cells(study), "codec=sign")], at[:3])


def test_an_excess_is_a_multiple_of_another(study: Path) -> None:
    base = [2.0, 3.0, 4.0]
    cell_runs(study, {"merge": "median"}, base)
    cell_runs(study, {"attack": "a"}, [x + 0.1 for x in base])
    cell_runs(study, {"attack": "b"}, [x + 0.3 for x in base])
    names = ("attack=b", "merge=median", "attack=a", "merge=median")
    found = excess_ratio(*(find(cells(study), name) for name in names))
    assert found.mean == pytest.approx(3.0)
    names = ("attack=b", "merge=median", "merge=median", "attack=a")
    with pytest.raises(LabError, match="is not above attack=a at seed 0, so nothing is a multiple"):
        excess_ratio(*(find(cells(study), name) for name in names))


def test_an_order_is_a_yes_only_where_every_step_is_sure(study: Path) -> None:
    cell_runs(study, {"diloco.inner_steps": 1}, [1.00, 1.01, 1.02])
    cell_runs(study, {"diloco.inner_steps": 4}, [1.10, 1.12, 1.12])
    cell_runs(study, {"diloco.inner_steps": 16}, [1.11, 1.10, 1.13])
    one, four, sixteen = (find(cells(study), f"H={h}") for h in (1, 4, 16))
    assert ordered([one, four]) == ("H=1 1.010 < H=4 1.113", "yes", "")
    assert ordered([four, one])[1:] == ("no", "H=1 is below H=4")
    assert ordered([one, four, sixteen])[1:] == ("cannot say", "too close: H=4 and H=16")
