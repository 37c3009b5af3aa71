"""The closed forms at given values, at their limits, against each other, and what they refuse."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from pww.errors import ConfigError
from pww.lab import forms
from pww.lab.forms.domain import FloatArray

THREE = (1.0, 0.25, 0.05)
TEN = np.geomspace(0.01, 1.0, 10)  # kappa 100


def rounded(values: list[float], digits: int) -> list[float]:
    return [round(float(v), digits) + 0.0 for v in values]


@pytest.mark.parametrize(
    ("outer_lr", "momentum", "loss"),
    [(0.8, 0.0, 0.05518), (0.3, 0.6, 0.03969), (0.1, 0.9, 0.05044)],
)
def test_form_1_noise_of_local_sgd(outer_lr: float, momentum: float, loss: float) -> None:
    a = [1.0, 0.3]
    variance = forms.local_sgd_variance(
        a, lr=0.4, inner_steps=5, workers=3, outer_lr=outer_lr, momentum=momentum
    )
    assert forms.loss(a, variance) == pytest.approx(loss, abs=5e-6)


def test_form_1_over_ten_modes_of_condition_100() -> None:
    losses = [
        forms.loss(
            TEN, forms.local_sgd_variance(TEN, lr=1, inner_steps=h, workers=1, outer_lr=0.05)
        )
        for h in (1, 4, 16, 64, 256)
    ]
    assert rounded(losses, 6) == [0.125788, 0.111347, 0.095992, 0.083227, 0.077032]


@pytest.mark.parametrize("inner_steps", [1, 7, 64, 1000])
def test_form_1_average_keeps_the_floor_of_sgd_at_any_interval(inner_steps: int) -> None:
    q = 1 - 0.2 * np.array(THREE)
    variance = forms.local_sgd_variance(THREE, lr=0.2, inner_steps=inner_steps, workers=5, noise=3)
    np.testing.assert_allclose(variance, 0.04 * 9 / ((1 - q**2) * 5), rtol=1e-12)


def test_form_1_is_infinite_from_its_limit_on() -> None:
    a, lr = np.array([1.0]), 0.5
    s = float(forms.contraction(a, lr=lr, inner_steps=3)[0])
    limit = forms.stable_outer_lr(s, momentum=0.5)
    assert limit == pytest.approx(3 / s)

    def variance(outer_lr: float) -> float:
        form = forms.local_sgd_variance(
            a, lr=lr, inner_steps=3, workers=1, outer_lr=outer_lr, momentum=0.5
        )
        return float(form[0])

    assert 1e2 < variance(limit * 0.9999) < math.inf
    assert variance(limit) == variance(limit * 1.5) == math.inf
    flat = forms.local_sgd_variance([0.0], lr=lr, inner_steps=3, workers=1)
    assert flat[0] == math.inf  # nothing brings a mode without curvature back


DRIFT = {
    1: 0, 2: -.0099, 5: -.0355, 10: -.0657, 20: -.0939, 50: -.0917, 100: -.0447, 500: .0616,
    5000: .0625,
}  # fmt: skip
CURVATURES = [4, 3, 2, 1, 0.5, 0.5, 0.25, 0.25]
OPTIMA = [1, 0.5, -0.5, 1.5, -2, -1, 3, 2]


@pytest.mark.parametrize(("inner_steps", "bias"), DRIFT.items())
def test_form_2_drift_and_its_cure(inner_steps: int, bias: float) -> None:
    drift = forms.drift(CURVATURES, OPTIMA, lr=0.05, inner_steps=inner_steps)
    assert drift == pytest.approx(bias, abs=5e-5)
    cured = forms.cure(CURVATURES, lr=0.05, inner_steps=inner_steps)
    left = forms.drift(CURVATURES, OPTIMA, lr=0.05, inner_steps=inner_steps, weights=cured)
    assert left == pytest.approx(0, abs=1e-12)
    assert cured.sum() == pytest.approx(1)


def test_form_3_best_rates_of_condition_1000() -> None:
    intervals = (1, 16, 64, 256, 1024)
    kappas = [forms.outer_condition(1000, h) for h in intervals]
    assert rounded([forms.best_heavy_ball_rate(k) for k in kappas], 4) == [
        0.9387, 0.7762, 0.6012, 0.3556, 0.1107,
    ]  # fmt: skip
    assert rounded([forms.best_averaging_rate(k) for k in kappas], 4) == [
        0.9980, 0.9687, 0.8832, 0.6314, 0.2187,
    ]  # fmt: skip
    nesterov = [
        forms.outer_rate(np.geomspace(1 / k, 1, 300), outer="nesterov", outer_lr=0.7, momentum=0.9)
        for k in kappas
    ]
    assert rounded(nesterov, 4) == [0.9925, 0.9434, 0.9279, 0.8704, 0.7044]


def test_form_3_best_heavy_ball_reaches_its_rate_and_no_neighbour_does() -> None:
    kappa = forms.outer_condition(1000, 64)
    modes = np.geomspace(1 / kappa, 1, 200)
    beta, alpha = forms.best_momentum(kappa), forms.best_outer_lr(1 / kappa, 1.0)

    def rate(outer_lr: float, momentum: float) -> float:
        return forms.outer_rate(modes, outer="heavy_ball", outer_lr=outer_lr, momentum=momentum)

    best = forms.best_heavy_ball_rate(kappa)
    # a double root of the matrix costs half the digits
    assert rate(alpha, beta) == pytest.approx(best, abs=1e-6)
    around = [(alpha * x, min(beta * y, 0.999)) for x in (0.97, 1, 1.03) for y in (0.95, 1, 1.05)]
    assert all(rate(*there) > best - 1e-9 for there in around)
    averaging = forms.outer_rate(
        modes, outer="nesterov", outer_lr=2 / (1 + 1 / kappa), momentum=0.0
    )
    assert averaging == pytest.approx(forms.best_averaging_rate(kappa))


def test_form_3_momentum_of_nine_tenths_is_for_short_intervals() -> None:
    assert forms.best_momentum(forms.outer_condition(1000, 1)) == pytest.approx(0.881, abs=1e-3)
    assert forms.best_momentum(forms.outer_condition(1000, 1024)) < 0.02
    assert forms.outer_condition(1, 9) == 1


@pytest.mark.parametrize(("kept", "variance"), [(1.0, 0.02778), (0.5, 0.0625), (0.2, 0.25)])
def test_form_4_unbiased_compressor(kept: float, variance: float) -> None:
    omega = forms.omega_of(kept)
    form = forms.unbiased_variance(1.0, 0.25, workers=6, omega=omega, outer_lr=0.8)
    assert form == pytest.approx(variance, abs=5e-6)


@pytest.mark.parametrize(("step", "variance"), [(0.0, 0.02778), (1.0, 0.03704), (2.0, 0.06481)])
def test_form_4_dither(step: float, variance: float) -> None:
    form = forms.dithered_variance(1.0, 0.25, workers=6, step=step, outer_lr=0.8)
    assert form == pytest.approx(variance, abs=5e-6)


@pytest.mark.parametrize(
    ("inner_steps", "kept", "loss"),
    [
        (4, 1.0, 0.01964), (4, 0.25, 0.08493), (16, 1.0, 0.01964), (4, 1 / 16, 0.74891),
        (64, 1.0, 0.01964),
    ],
)  # fmt: skip
def test_form_5_fewer_rounds_beat_a_compressor(inner_steps: int, kept: float, loss: float) -> None:
    s = forms.contraction(THREE, lr=0.2, inner_steps=inner_steps)
    noise = forms.inner_variance(THREE, lr=0.2, inner_steps=inner_steps)
    form = forms.unbiased_variance(s, noise, workers=8, omega=forms.omega_of(kept))
    assert forms.loss(THREE, form) == pytest.approx(loss, abs=5e-6)


@pytest.mark.parametrize(
    ("kept", "fed_back", "unbiased"), [(0.25, 1.074, 4.01), (0.1, 1.225, 10.07)]
)
def test_form_6_error_feedback(kept: float, fed_back: float, unbiased: float) -> None:
    s = forms.contraction(THREE, lr=0.2, inner_steps=16)
    noise = forms.inner_variance(THREE, lr=0.2, inner_steps=16)

    def loss(variance: object) -> float:
        return forms.loss(THREE, variance)  # type: ignore[arg-type]

    dense = loss(forms.unbiased_variance(s, noise, workers=16, omega=0, outer_lr=0.05))
    feedback = forms.error_feedback_variance(s, noise, workers=16, kept=kept, outer_lr=0.05)
    lossy = forms.unbiased_variance(s, noise, workers=16, omega=forms.omega_of(kept), outer_lr=0.05)
    assert loss(feedback) / dense == pytest.approx(fed_back, abs=5e-4)
    assert loss(lossy) / dense == pytest.approx(unbiased, abs=5e-3)


@pytest.mark.parametrize("kept", [1.0, 0.6, 0.25, 0.02])
def test_form_7_is_form_6_with_one_worker(kept: float) -> None:
    assert forms.error_feedback_limit(kept) == pytest.approx(2 * kept / (2 - kept))
    z = 0.7 * 2 * kept / (2 - kept)
    form = forms.error_feedback_variance(0.8, 0.3, workers=1, kept=kept, outer_lr=z / 0.8)
    assert form == pytest.approx(z / 0.8 * 0.3 / (0.8 * (2 - z * (2 / kept - 1))), rel=1e-12)
    gone = forms.error_feedback_variance(0.8, 0.3, workers=1, kept=kept, outer_lr=z / 0.8 / 0.69)
    assert gone == math.inf


def test_form_6_without_compression_is_form_1() -> None:
    form = forms.error_feedback_variance(0.8, 0.3, workers=7, kept=1.0, outer_lr=1.3)
    assert form == pytest.approx(
        forms.unbiased_variance(0.8, 0.3, workers=7, omega=0, outer_lr=1.3)
    )


def overlapped(overlap: int, alpha: float) -> FloatArray:
    return forms.overlapped_variance(
        [1.0, 0.3], lr=0.4, inner_steps=5, overlap=overlap, workers=3, outer_lr=alpha, noise=0.7
    )


def test_form_8_without_overlap_is_form_1_and_averaging_pays_nothing_for_it() -> None:
    for alpha in (0.3, 0.8, 1.0):
        plain = forms.local_sgd_variance(
            [1.0, 0.3], lr=0.4, inner_steps=5, workers=3, outer_lr=alpha, noise=0.7
        )
        np.testing.assert_allclose(overlapped(0, alpha), plain, rtol=1e-12)
        late = overlapped(4, alpha)
        assert np.allclose(late, plain, rtol=1e-12) == (alpha == 1.0)
    assert np.isinf(overlapped(0, 2.4)).any()


def test_form_8_overlap_is_shorter_than_a_phase() -> None:
    with pytest.raises(ConfigError, match="overlap is 5; it must be a number from 0 to 4"):
        overlapped(5, 1.0)


@pytest.mark.parametrize(
    ("delay", "limit"), [(0, 2), (1, 1), (2, .618), (3, .445), (5, .285), (8, .185), (16, .095)]
)  # fmt: skip
def test_form_8_limit_best_step_and_rate_of_a_delay(delay: int, limit: float) -> None:
    exact = forms.delay_limit(delay)
    assert exact == pytest.approx(limit, abs=5e-4)
    # a root crosses the unit circle there, and nowhere before
    assert forms.delayed_rate(exact, delay=delay) == pytest.approx(1, abs=1e-9)
    assert (
        forms.delayed_rate(0.98 * exact, delay=delay)
        < 1
        < forms.delayed_rate(1.02 * exact, delay=delay)
    )
    best, rate = forms.best_delayed_step(delay), forms.best_delayed_rate(delay)
    assert forms.delayed_rate(best, delay=delay) == pytest.approx(rate, abs=1e-6)
    if delay:
        assert forms.delayed_rate(0.9 * best, delay=delay) > rate
        assert forms.delayed_rate(1.1 * best, delay=delay) > rate


@pytest.mark.parametrize(
    ("workers", "noise"),
    [(1, 1), (2, 1), (3, 1.346), (5, 1.434), (9, 1.495), (15, 1.525), (31, 1.549)],
)  # fmt: skip
def test_form_9_noise_of_the_median(workers: int, noise: float) -> None:
    assert workers * forms.median_noise(workers) == pytest.approx(noise, abs=5.1e-4)


def test_form_9_noise_of_an_even_median_against_draws_and_of_many_workers() -> None:
    middle = np.median(np.random.default_rng(3).standard_normal((60_000, 4)), axis=1)
    assert 4 * forms.median_noise(4) == pytest.approx(4 * (middle**2).mean(), rel=0.025)
    # pi / (2 N), up to a term of 1/N^2
    for workers in (301, 1001):
        assert workers * forms.median_noise(workers) == pytest.approx(
            math.pi / 2, rel=0.6 / workers
        )
    assert 1000 * forms.median_noise(1000) == pytest.approx(math.pi / 2, rel=2e-3)


@pytest.mark.parametrize(
    ("share", "bias"), [(1 / 16, 0.0837), (1 / 8, 0.1800), (1 / 4, 0.4307), (3 / 8, 0.8416)]
)
def test_form_9_bias_of_the_median(share: float, bias: float) -> None:
    assert forms.median_bias(share) == pytest.approx(bias, abs=5e-5)
    assert forms.mean_bias(share, shift=100.0) == 100 * share


def test_form_9_median_breaks_down_at_half() -> None:
    assert forms.median_bias(0.0) == 0
    assert forms.median_bias(0.499) < 4
    assert forms.median_bias(0.5) == math.inf


def test_form_10_equal_workers_are_form_4() -> None:
    s, noise = np.full((4, 3), 0.6), np.full((4, 3), 0.2)
    form = forms.unequal_variance(s, noise, weights=[0.25] * 4, outer_lr=1.1)
    plain = forms.unbiased_variance(0.6, 0.2, workers=4, omega=0, outer_lr=1.1)
    np.testing.assert_allclose(form, plain)
    assert (forms.unequal_variance(s, noise, weights=[1.0] * 4, outer_lr=1.1) == math.inf).all()


def test_form_10_mean_inverse_by_enumeration() -> None:
    n, p = 5, 0.3
    chance = {k: math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(1, n + 1)}
    by_hand = sum(c / k for k, c in chance.items()) / sum(chance.values())
    assert forms.mean_inverse_present(n, p) == pytest.approx(by_hand)
    assert forms.mean_inverse_present(n, 1.0) == 1 / n


def test_form_10_which_divisor_is_quieter_depends_on_the_outer_step() -> None:
    small = {"workers": 8, "present": 0.5, "outer_lr": 0.05}
    large = small | {"outer_lr": 1.7}
    s, noise = 0.9, 0.1
    assert forms.divided_by_expected(s, noise, **small) < forms.divided_by_present(
        s, noise, **small
    )  # type: ignore[arg-type]
    assert forms.divided_by_expected(s, noise, **large) > forms.divided_by_present(
        s, noise, **large
    )  # type: ignore[arg-type]


def test_a_mode_keeps_its_digits_where_the_step_is_tiny() -> None:
    a = 1e-12
    assert forms.contraction(a, lr=0.1, inner_steps=3) == pytest.approx(3e-13, rel=1e-9)
    assert forms.contraction(1.0, lr=1.5, inner_steps=3) == pytest.approx(1 + 0.125)
    assert forms.inner_variance(0.0, lr=0.1, noise=2, inner_steps=7) == pytest.approx(7 * 0.04)
    assert forms.inner_variance(20.0, lr=0.1, inner_steps=7) == pytest.approx(7 * 0.01)  # q = -1


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: forms.omega_of(0.0), "kept is 0; it must be a number above 0 and at most 1"),
        (lambda: forms.omega_of(1.5), "kept is 1.5; it must be a number above 0 and at most 1"),
        (
            lambda: forms.contraction([1, -1], lr=0.1),
            "curvature is -1; it must be a number 0 or more",
        ),
        (lambda: forms.contraction(1, lr=0), "lr is 0; it must be a number above 0"),
        (lambda: forms.contraction(1, lr=math.nan), "lr is nan; it must be a number above 0"),
        (lambda: forms.median_bias(1.2), "share is 1.2; it must be a number from 0 to 1"),
        (
            lambda: forms.unbiased_variance(1, 1, workers=0, omega=-1),
            "workers is 0; it must be a number 1 or more: change it",
        ),
        (
            lambda: forms.local_sgd_variance(1, lr=1, inner_steps=1, workers=1, momentum=1.0),
            "momentum is 1; it must be a number from 0 to 1",
        ),
    ],
)
def test_a_number_out_of_range_is_refused(call: Callable[[], object], text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        call()
    assert text in str(refused.value)
