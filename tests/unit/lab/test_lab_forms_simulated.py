"""Each closed form against what it describes: the simulation, or the exact second moments.

A simulated loss must lie within four standard errors of the form, taken from the spread of its
independent chains, and that error must be small enough to see a wrong form. The second moments of
a linear system with random matrices are solved exactly, by enumerating what can be drawn.
"""

import itertools
import math

import numpy as np
import numpy.typing as npt
import pytest

from pww.lab import forms
from pww.lab.quadratic import run
from pww.lab.quadratic_setting import Setting

MODES = (1.0, 0.4)
LR = 0.3
H = 3
S = forms.contraction(MODES, lr=LR, inner_steps=H)
V = forms.inner_variance(MODES, lr=LR, inner_steps=H)
STEPS = (1, 2, 3, 6)
WEIGHTS = (1.0, 2.0, 3.0, 4.0)
RESOLVED = 0.014
"""Largest standard error, as a share of the form: what a test must be able to see."""


def setting(**given: object) -> Setting:
    base = {"curvature": MODES, "lr": LR, "inner_steps": H, "workers": 4, "start": 0.0}
    return Setting(**(base | given))  # type: ignore[arg-type]


def local_sgd(outer_lr: float, momentum: float) -> tuple[Setting, npt.ArrayLike]:
    made = setting(
        outer="heavy_ball" if momentum else "sgd", outer_lr=outer_lr, momentum=momentum, noise=2.0
    )
    form = forms.local_sgd_variance(
        MODES, lr=LR, inner_steps=H, workers=4, noise=2.0, outer_lr=outer_lr, momentum=momentum
    )
    return made, form


def unbiased(kept: float, workers: int, outer_lr: float) -> tuple[Setting, npt.ArrayLike]:
    made = setting(codec="randomk", kept=kept, workers=workers, outer_lr=outer_lr)
    omega = forms.omega_of(kept)
    return made, forms.unbiased_variance(S, V, workers=workers, omega=omega, outer_lr=outer_lr)


def fed_back(kept: float, workers: int, outer_lr: float) -> tuple[Setting, npt.ArrayLike]:
    made = setting(
        codec="randomk", kept=kept, workers=workers, outer_lr=outer_lr, error_feedback=True
    )
    return made, forms.error_feedback_variance(S, V, workers=workers, kept=kept, outer_lr=outer_lr)


def dithered() -> tuple[Setting, npt.ArrayLike]:
    made = setting(codec="dither", step=2.0, outer_lr=0.8)
    return made, forms.dithered_variance(S, V, workers=4, step=2.0, outer_lr=0.8)


def median(workers: int) -> tuple[Setting, npt.ArrayLike]:
    noise = forms.median_noise(workers)
    made = setting(merge="median", workers=workers, outer_lr=0.8)
    return made, forms.robust_variance(S, V, noise=noise, outer_lr=0.8)


def unequal() -> tuple[Setting, npt.ArrayLike]:
    contractions = np.stack([forms.contraction(MODES, lr=LR, inner_steps=h) for h in STEPS])
    noises = np.stack([forms.inner_variance(MODES, lr=LR, inner_steps=h) for h in STEPS])
    weights = np.array(WEIGHTS) / sum(WEIGHTS)
    made = setting(inner_steps=6, worker_steps=STEPS, weights=WEIGHTS, outer_lr=1.2)
    return made, forms.unequal_variance(contractions, noises, weights=weights, outer_lr=1.2)


def partly(divide: str) -> tuple[Setting, npt.ArrayLike]:
    made = setting(participation=0.5, divide=divide, outer_lr=0.8)
    form = forms.divided_by_present if divide == "present" else forms.divided_by_expected
    return made, form(S, V, workers=4, present=0.5, outer_lr=0.8)


CASES = {
    "1 averaging": local_sgd(1.0, 0.0),
    "1 outer step 0.5": local_sgd(0.5, 0.0),
    "1 heavy ball": local_sgd(0.3, 0.6),
    "4 random-k 0.5": unbiased(0.5, 4, 0.8),
    "5 random-k 0.25": unbiased(0.25, 8, 1.0),
    "7 random-k 0.2, one worker": unbiased(0.2, 1, 0.2),
    "4 dither": dithered(),
    "6 error feedback, 4 workers": fed_back(0.25, 4, 0.4),
    "6 error feedback, 16 workers": fed_back(0.1, 16, 0.3),
    "7 error feedback, one worker": fed_back(0.25, 1, 0.2),
    "9 median of 5": median(5),
    "9 median of 4": median(4),
    "10 unequal steps": unequal(),
    "10 over those present": partly("present"),
    "10 over those expected": partly("expected"),
}


@pytest.mark.parametrize("case", CASES)
def test_stationary_loss_is_the_form(case: str) -> None:
    made, variance = CASES[case]
    predicted = forms.loss(MODES, variance)
    got = run(made, seed=12, rounds=500, chains=512, burn_in=0.2)
    error = got.losses.std(ddof=1) / math.sqrt(512)
    assert error < RESOLVED * predicted
    assert abs(got.loss - predicted) < 4 * error, (got.loss / predicted, error / predicted)


@pytest.mark.parametrize("inner_steps", [1, 5, 20])
def test_form_2_noiseless_workers_rest_at_the_fixed_point(inner_steps: int) -> None:
    a, c = (4.0, 3.0, 1.0, 0.25), (1.0, -0.5, -2.0, 3.0)
    far = {"curvature": (1.0,), "curvature_factors": a, "optima": c, "lr": 0.05, "noise": 0.0}
    for weights in (WEIGHTS, tuple(forms.cure(a, lr=0.05, inner_steps=inner_steps))):
        made = setting(**far, inner_steps=inner_steps, weights=weights)
        end = run(made, seed=1, rounds=2000, burn_in=0.99).position[0, 0]
        form = forms.fixed_point(a, c, lr=0.05, inner_steps=inner_steps, weights=weights)
        assert end == pytest.approx(form, abs=1e-9)
    assert end == pytest.approx(forms.true_optimum(a, c), abs=1e-9)  # of the cured weights


@pytest.mark.parametrize(
    ("outer", "outer_lr", "momentum"),
    [("heavy_ball", 0.3, 0.5), ("nesterov", 0.7, 0.9), ("nesterov", 0.3, 0.5), ("sgd", 1.5, 0.0)],
)
def test_form_3_noiseless_distance_falls_at_the_rate(
    outer: str, outer_lr: float, momentum: float
) -> None:
    made = setting(outer=outer, outer_lr=outer_lr, momentum=momentum, noise=0.0, start=1.0)
    form = forms.outer_rate(
        S, outer="heavy_ball" if outer == "sgd" else outer, outer_lr=outer_lr, momentum=momentum  # type: ignore[arg-type]
    )  # fmt: skip
    rows = run(made, seed=1, rounds=400, eval_every=1).rows
    # the greatest of a stretch, as complex roots make the distance swing
    early = max(float(row["loss"]) for row in rows[80:120])
    late = max(float(row["loss"]) for row in rows[280:320])
    assert (late / early) ** (1 / 400) == pytest.approx(form, rel=2e-3)


@pytest.mark.parametrize("delay", [0, 1, 3, 8])
def test_form_8_delayed_step_is_stable_to_its_limit(delay: int) -> None:
    limit = forms.delay_limit(delay)

    def after(step: float, rounds: int) -> float:
        made = setting(
            curvature=(1.0,), lr=1.0, inner_steps=1, workers=1, noise=0.0, start=1e-60,
            outer_lr=step, delay=delay,
        )  # fmt: skip
        rows = run(made, seed=1, rounds=rounds, eval_every=1).rows
        return max(float(row["loss"]) for row in rows[-40:])

    for step in (limit * 0.97, limit * 1.03):  # one falls, one grows, each at its root's rate
        measured = (after(step, 1640) / after(step, 640)) ** (1 / 2000)
        assert (measured < 1) == (step < limit)
        assert measured == pytest.approx(forms.delayed_rate(step, delay=delay), rel=5e-4)
    if delay:
        best = forms.best_delayed_step(delay)
        rate = (after(best, 240) / after(best, 140)) ** (1 / 200)
        # a double root: t rate^t, so the local rate is a little slower
        assert forms.best_delayed_rate(delay) < rate < forms.best_delayed_rate(delay) * 1.012


@pytest.mark.parametrize(("overlap", "alpha"), [(0, 0.8), (1, 0.8), (4, 0.8), (4, 0.3), (3, 1.0)])
def test_form_8_an_outer_step_some_inner_steps_late(overlap: int, alpha: float) -> None:
    a = np.array([1.0, 0.3])
    made = setting(
        curvature=tuple(a), lr=0.4, inner_steps=5, workers=3, outer_lr=alpha, overlap=overlap
    )
    got = run(made, seed=3, rounds=6000, chains=64, burn_in=0.05)
    form = forms.overlapped_variance(
        a, lr=0.4, inner_steps=5, overlap=overlap, workers=3, outer_lr=alpha
    )
    spread = got.losses.std(ddof=1) / 8
    assert got.loss == pytest.approx(forms.loss(a, form), abs=4 * spread)
    assert spread < 0.01 * got.loss


def test_form_9_one_sided_attackers_move_the_median_by_its_bias_and_the_mean_at_will() -> None:
    workers, attackers = 401, 100
    far: dict[str, object] = {
        "curvature": (0.5,), "inner_steps": 1, "workers": workers, "attackers": attackers,
        "attack": "shift", "attack_scale": 50.0,
    }  # fmt: skip
    s, noise = 0.15, math.sqrt(0.09)
    kept = run(setting(**far, merge="median"), seed=2, rounds=200, chains=16)
    error = kept.position.std(ddof=1) / 4 * s / noise
    form = forms.median_bias(attackers / workers)
    # an order statistic of 301 honest ones lies about 1/N from the limit of many
    assert -kept.position.mean() * s / noise == pytest.approx(form, abs=4 * error + 2 / workers)
    assert error < 0.02
    moved = run(setting(**far), seed=2, rounds=200, chains=16).position.mean() * s
    assert -moved == pytest.approx(forms.mean_bias(attackers / workers, shift=50.0), rel=2e-3)


def test_form_9_median_holds_below_half_and_breaks_at_half() -> None:
    far: dict[str, object] = {
        "workers": 9,
        "merge": "median",
        "attack": "shift",
        "attack_scale": 1e4,
    }
    held, broken = (
        np.abs(run(setting(**far, attackers=n), seed=3, rounds=60).position).max() for n in (4, 5)
    )
    assert held < 5
    assert broken > 1e3


Moments = list[tuple[float, npt.NDArray[np.float64], npt.NDArray[np.float64]]]


def second_moments(cases: Moments) -> tuple[float, npt.NDArray[np.float64]]:
    """Radius of the moments' map and their stationary value, of `z = A z + B n`, n normal."""
    size = len(cases[0][1])
    step = sum(p * np.kron(a, a) for p, a, _ in cases)
    added = sum(p * (b @ b.T).ravel() for p, _, b in cases)
    solved = np.linalg.solve(np.eye(size * size) - step, added)
    return float(np.abs(np.linalg.eigvals(step)).max()), solved.reshape(size, size)


def error_feedback_cases(kept: float, workers: int, z: float, s: float, noise: float) -> Moments:
    """State: x and each worker's rest; one case for each set of those who send."""
    alpha, cases = z / s, []
    for sends in itertools.product((0, 1), repeat=workers):
        a, b = np.zeros((workers + 1,) * 2), np.zeros((workers + 1, workers))
        a[0, 0] = 1.0
        for i, sent in enumerate(sends):
            row = np.zeros(workers + 1)
            row[0], row[i + 1] = s, 1.0
            a[0] -= alpha / workers * sent * row
            b[0, i] = -alpha / workers * sent * math.sqrt(noise)
            a[i + 1], b[i + 1, i] = (1 - sent) * row, (1 - sent) * math.sqrt(noise)
        k = sum(sends)
        cases.append((kept**k * (1 - kept) ** (workers - k), a, b))
    return cases


@pytest.mark.parametrize(
    ("kept", "workers", "z"), [(0.3, 1, 0.2), (0.3, 2, 0.3), (0.1, 3, 0.1), (0.8, 4, 1.4)]
)
def test_form_6_is_the_exact_second_moment(kept: float, workers: int, z: float) -> None:
    radius, moments = second_moments(error_feedback_cases(kept, workers, z, 0.6, 0.25))
    assert radius < 1
    form = forms.error_feedback_variance(0.6, 0.25, workers=workers, kept=kept, outer_lr=z / 0.6)
    assert form == pytest.approx(moments[0, 0], rel=1e-9)
    limit = forms.error_feedback_limit(kept, workers=workers)
    at_limit, _ = second_moments(error_feedback_cases(kept, workers, limit * 0.999999, 0.6, 0.25))
    assert at_limit == pytest.approx(1, abs=1e-5)


def test_form_5_is_the_exact_second_moment_where_tails_are_too_heavy_to_simulate() -> None:
    kept, workers = 1 / 16, 8
    cases: Moments = []
    for k in range(workers + 1):
        chance = math.comb(workers, k) * kept**k * (1 - kept) ** (workers - k)
        pull = k / (workers * kept)
        noise = math.sqrt(k * V[0]) / (workers * kept)
        cases.append((chance, np.array([[1 - pull * S[0]]]), np.array([[noise]])))
    _, moments = second_moments(cases)
    form = forms.unbiased_variance(S[0], V[0], workers=workers, omega=forms.omega_of(kept))
    assert form == pytest.approx(moments[0, 0], rel=1e-12)
