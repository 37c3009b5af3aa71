"""The composition rule and its rival: constants known beforehand, held-out cells, refusals."""

import itertools
import math
import sys

import numpy as np
import pytest

from pww.errors import ConfigError
from pww.lab import forms
from pww.lab.fits import Cell, fit, refusals
from pww.lab.fits_compared import compare

OMEGAS = (0.0, 1.0, 3.0, 7.0, 15.0)
INTERVALS = (4, 16, 64, 256)


def rule(omega: float, h: int) -> float:
    return 2.0 + 0.01 * omega * (h / 16) ** 0.6


def rival(omega: float, h: int) -> float:
    return float(2.0 + 0.05 * omega**0.5 + 0.02 * (h / 16) ** 0.8)


def grid(law: object, *, noise: float = 0.0, seeds: int = 1, seed: int = 0) -> list[Cell]:
    generator = np.random.default_rng(seed)
    return [
        Cell(omega, h, float(law(omega, h) + noise * generator.standard_normal()))  # type: ignore[operator]
        for omega, h in itertools.product(OMEGAS, INTERVALS)
        for _ in range(seeds)
    ]


def test_the_rule_finds_its_own_constants() -> None:
    found = fit(grid(rule))
    assert found.constants == pytest.approx({"L0": 2.0, "a": 0.01, "b": 0.6}, rel=1e-5)
    assert found.error < 1e-7
    assert found.intervals == {}
    assert found.predict(31.0, 1024) == pytest.approx(rule(31.0, 1024), rel=1e-5)


def test_three_cells_are_enough_for_the_rule() -> None:
    cells = [Cell(o, h, rule(o, h)) for o, h in ((0.0, 16), (1.0, 16), (1.0, 64))]
    assert fit(cells).constants["b"] == pytest.approx(0.6, rel=1e-4)


@pytest.mark.parametrize("slope", [-1.5, 0.0, 2.5])
def test_any_exponent_is_found(slope: float) -> None:
    cells = [
        Cell(o, h, 1.0 + 0.02 * o * (h / 16) ** slope)
        for o, h in itertools.product(OMEGAS, INTERVALS)
    ]
    assert fit(cells).constants["b"] == pytest.approx(slope, abs=1e-4)


def test_the_rival_finds_its_own_constants() -> None:
    found = fit(grid(rival), law="rival")
    known = {"L0": 2.0, "a": 0.05, "p": 0.5, "c": 0.02, "q": 0.8}
    assert found.constants == pytest.approx(known, rel=1e-3)
    assert found.predict(3.0, 64) == pytest.approx(rival(3.0, 64), rel=1e-6)


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    held = []
    for seed in range(12):
        found = fit(grid(rule, noise=0.004, seed=seed), resamples=40, seed=seed, confidence=0.9)
        low, high = found.intervals["b"]
        held.append(low <= 0.6 <= high)
        assert low < found.constants["b"] < high
    # 12 of 90 %: seven or fewer has a chance of 0.4 %
    assert sum(held) >= 8


def test_intervals_shrink_with_confidence_and_come_again_with_their_seed() -> None:
    cells = grid(rule, noise=0.004, seeds=3)

    def interval(confidence: float) -> tuple[float, float]:
        return fit(cells, resamples=50, seed=3, confidence=confidence).intervals["a"]

    wide, narrow = interval(0.95), interval(0.5)
    assert wide[0] < narrow[0] < narrow[1] < wide[1]
    # 2.9 for normals; next to nothing if percentiles were taken too far out
    assert wide[1] - wide[0] > 1.8 * (narrow[1] - narrow[0])
    assert interval(0.95) == wide


def test_each_law_predicts_its_own_world_better() -> None:
    cells = grid(rule, noise=0.002)
    ruled = compare(cells, splits=25)
    # seven cells can be fitted by five constants better than twenty: what is told is not that
    assert ruled.rival_error > fit(cells, law="rival").error
    assert ruled.rule_error < ruled.rival_error
    assert ruled.rule_better > 18
    assert ruled.splits == 25
    rivalled = compare(grid(rival, noise=0.0002), splits=25, fitted_share=0.6)
    assert rivalled.rival_error < rivalled.rule_error


def test_the_rule_beats_the_rival_on_the_quadratic() -> None:
    """A world that neither was made for: the closed form of a compressed outer step."""
    modes, cells = np.geomspace(0.01, 1.0, 6), []
    for kept, h in itertools.product((1.0, 0.7, 0.5, 0.35, 0.25), (1, 2, 4, 8, 16)):
        s = forms.contraction(modes, lr=0.3, inner_steps=h)
        noise = forms.inner_variance(modes, lr=0.3, inner_steps=h)
        variance = forms.unbiased_variance(
            s, noise, workers=8, omega=forms.omega_of(kept), outer_lr=0.5
        )
        cells.append(Cell(forms.omega_of(kept), h, 2.0 + forms.loss(modes, variance)))
    found = compare(cells, splits=25)
    assert found.rule_error < found.rival_error
    assert found.rule_error < 0.02


@pytest.mark.parametrize(
    ("cells", "text"),
    [
        (
            [Cell(o, 16, 2 + o) for o in OMEGAS],
            "all cells with a compressor share H = 16 and the rule needs 2 values; how the loss "
            "goes with H cannot be fitted: measure another H",
        ),
        (  # dense cells of other H do not help
            [Cell(0.0, 64, 2.0), Cell(1.0, 16, 2.1), Cell(3.0, 16, 2.3)],
            "all cells with a compressor share H = 16",
        ),
        (
            [Cell(1.0, h, 2.0) for h in INTERVALS],
            "the cells have omega = 1 only and the rule needs 2 values",
        ),
        ([Cell(0.0, 16, 2.0), Cell(1.0, 64, 2.1)], "2 different cells for 3 constants (rule)"),
        ([], "0 different cells for 3 constants (rule); measure 3 more"),
        (
            [*grid(rule), Cell(1.0, 16, math.inf)],
            "loss of the cell omega 1, H 16 is inf; a fit wants finite losses above 0",
        ),
        ([*grid(rule), Cell(-1.0, 16, 2.0)], "a cell has omega -1 and H 16; omega is 0 or more"),
    ],
)
def test_cells_that_determine_no_fit_are_refused(cells: list[Cell], text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        fit(cells)
    assert text in str(refused.value)


def test_the_rival_wants_three_of_each() -> None:
    cells = [Cell(o, h, rival(o, h)) for o in OMEGAS for h in (4, 16)]
    assert refusals(cells, law="rule") == []
    with pytest.raises(ConfigError, match="the cells share H = 4, 16 and the rival needs 3 values"):
        fit(cells, law="rival")


def test_a_comparison_that_cannot_be_fair_is_refused() -> None:
    with pytest.raises(ConfigError, match="all cells with a compressor share H = 16"):
        compare([Cell(o, 16, 2 + o) for o in OMEGAS])
    with pytest.raises(ConfigError, match=r"0\.10 of 20 different cells is 2; the rival has 5"):
        compare(grid(rule), fitted_share=0.1)
    with pytest.raises(ConfigError, match=r"splits 0 with fitted_share 0\.5; splits must be 1"):
        compare(grid(rule), splits=0, fitted_share=0.5)
    with pytest.raises(ConfigError, match=r"resamples -1 at confidence 0\.9; take 0 or more"):
        fit(grid(rule), resamples=-1, confidence=0.9)


def test_cells_of_which_no_share_determines_a_fit_are_refused() -> None:
    """Two compressors besides many intervals of one: a third of the cells has both by rare luck."""
    cells = [Cell(1.0, h, 2.0 + h / 100) for h in range(1, 2000)]
    cells += [Cell(0.0, 1, 2.0), Cell(2.0, 2, 2.1)]
    with pytest.raises(ConfigError) as refused:
        compare(cells, splits=1, fitted_share=0.003)
    assert "none of 1000 random draws of cells determines a fit (rival)" in str(refused.value)


def test_a_machine_without_scipy_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(ConfigError) as refused:
        fit(grid(rule))
    assert str(refused.value).startswith("a fit needs scipy, which cannot be imported (")
    assert str(refused.value).endswith("; pip install 'pww[lab]'")
