"""The quadratic's identities, codecs, presence, rows and refusals."""

import itertools
import json
import math
import subprocess
import sys

import numpy as np
import pytest

from pww.errors import ConfigError
from pww.lab.quadratic import Outcome, run
from pww.lab.quadratic_setting import Setting


def setting(**given: object) -> Setting:
    return Setting(**({"curvature": (1.0, 0.3), "workers": 4, "inner_steps": 3} | given))  # type: ignore[arg-type]


def end(made: Setting, *, seed: int = 5, rounds: int = 40) -> Outcome:
    """An outcome whose position is theta after the last round."""
    return run(made, seed=seed, rounds=rounds, chains=3, burn_in=1 - 0.5 / rounds)


@pytest.mark.parametrize("inner_steps", [1, 4])
def test_one_worker_that_averages_is_plain_sgd(inner_steps: int) -> None:
    a, lr, noise, rounds = np.array([1.0, 0.3]), 0.2, 0.7, 50
    generator = np.random.default_rng(9)
    theta = np.ones((1, 2))
    for _ in range(rounds * inner_steps):
        theta = theta - lr * (a * theta + noise * generator.standard_normal((1, 2)))
    made = setting(workers=1, inner_steps=inner_steps, lr=lr, noise=noise)
    got = run(made, seed=9, rounds=rounds, burn_in=0.99)
    np.testing.assert_allclose(got.position, theta, rtol=1e-10)
    assert got.loss == pytest.approx(float((a / 2 * theta**2).sum()), rel=1e-10)


def test_one_inner_step_is_synchronous_sgd_on_the_mean_gradient() -> None:
    a, lr, m, rounds = np.array([1.0, 0.3]), 0.2, 6, 50
    generator = np.random.default_rng(9)
    theta = np.ones((1, 2))
    for _ in range(rounds):
        xi = generator.standard_normal((1, m, 2)).mean(axis=1)
        theta = theta - lr * (a * theta + xi)
    made = setting(workers=m, inner_steps=1, lr=lr)
    got = run(made, seed=9, rounds=rounds, burn_in=0.99)
    np.testing.assert_allclose(got.position, theta, rtol=1e-10)


@pytest.mark.parametrize("outer", ["heavy_ball", "nesterov"])
def test_outer_momentum_by_hand_on_a_noiseless_mode(outer: str) -> None:
    made = setting(curvature=(1.0,), lr=0.2, noise=0.0, outer=outer, outer_lr=0.7, momentum=0.9)
    x = v = 0.0
    x, s = 1.0, 1 - 0.8**3
    for _ in range(25):
        g = s * x
        v = 0.9 * v + g
        x -= 0.7 * (v if outer == "heavy_ball" else g + 0.9 * v)
    np.testing.assert_allclose(end(made, rounds=25).position, x, rtol=1e-10)


SAME = [
    ({"outer": "heavy_ball"}, {}),
    ({"outer": "nesterov"}, {}),
    ({"merge": "trimmed"}, {}),
    ({"weights": (2.0,) * 4}, {}),
    ({"worker_steps": (3,) * 4}, {}),
    ({"curvature_factors": (1.0,) * 4, "optima": (0.0,) * 4}, {}),
    ({"merge": "clipped", "clip": 1e9}, {}),
    ({"attackers": 2, "attack": "shift", "attack_scale": 0.0}, {}),
    ({"workers": 1, "inner_steps": 1, "merge": "median"}, {"workers": 1, "inner_steps": 1}),
    ({"workers": 1, "merge": "geometric_median"}, {"workers": 1}),
]


@pytest.mark.parametrize(("one", "other"), SAME, ids=[str(one) for one, _ in SAME])
def test_what_should_change_nothing_changes_nothing(
    one: dict[str, object], other: dict[str, object]
) -> None:
    np.testing.assert_allclose(
        end(setting(**one)).position, end(setting(**other)).position, rtol=1e-9, atol=1e-12
    )


def test_random_k_that_keeps_all_and_a_fine_dither_are_dense() -> None:
    dense = run(setting(), seed=4, rounds=300, chains=512)
    for other in (
        {"codec": "randomk"},
        {"codec": "randomk", "error_feedback": True},
        {"codec": "dither", "step": 1e-3},
        {"codec": "dither", "step": 1e-3, "error_feedback": True},
    ):
        assert run(setting(**other), seed=4, rounds=300, chains=512).loss == pytest.approx(
            dense.loss, rel=0.03
        )


def test_error_feedback_loses_nothing_of_what_is_sent_late() -> None:
    """Without noise or contraction what was sent and what rests add up to what was walked."""
    far: dict[str, object] = {"optima": (1.0, 2.0, 3.0, 4.0), "codec": "randomk", "kept": 0.3}
    biased = setting(**far, noise=0.0, outer_lr=0.2, error_feedback=True, start=3.0)
    got = run(biased, seed=6, rounds=4000, chains=8, burn_in=0.2)
    # the optimum is 2.5; a codec that lost its rest would still rest there, but not by chance alone
    np.testing.assert_allclose(got.position.mean(axis=0), 2.5, atol=0.03)


def test_loss_is_the_mean_of_the_workers_above_its_least() -> None:
    factors, optima, a = np.array([4.0, 1.0, 0.5]), np.array([1.0, -2.0, 3.0]), 0.3
    made = setting(
        curvature=(a,), workers=3, inner_steps=1, lr=0.1, noise=0.0, start=0.7,
        curvature_factors=tuple(factors), optima=tuple(optima),
    )  # fmt: skip
    got = run(made, seed=1, rounds=1, burn_in=0.0)

    def mean_loss(x: float) -> float:
        return float((factors * a / 2 * (x - optima) ** 2).mean())

    best = float((factors * optima).sum() / factors.sum())
    assert got.loss == pytest.approx(mean_loss(got.position[0, 0]) - mean_loss(best))
    assert run(made, seed=1, rounds=900, burn_in=0.9).loss < 1e-12


def test_unequal_steps_are_taken() -> None:
    made = setting(
        curvature=(1.0,), lr=0.1, noise=0.0, workers=3, inner_steps=9, worker_steps=(1, 4, 9)
    )
    left = np.mean([0.9**h for h in (1, 4, 9)])
    np.testing.assert_allclose(end(made, rounds=1).position, left, rtol=1e-12)


def test_partial_participation_counts_and_divides() -> None:
    quiet = setting(curvature=(1.0,), lr=0.1, noise=0.0, participation=0.4)
    one = run(quiet, seed=3, rounds=1, chains=4000, burn_in=0.0).position
    s, nobody = 1 - 0.9**3, 0.6**4
    assert set(np.round(np.unique(one), 9)) == {round(1 - s, 9), 1.0}  # whole, or no round at all
    assert (one == 1.0).mean() == pytest.approx(nobody, abs=0.03)
    expected = setting(curvature=(1.0,), lr=0.1, noise=0.0, participation=0.4, divide="expected")
    got = run(expected, seed=3, rounds=1, chains=4000, burn_in=0.0)
    assert len(np.unique(np.round(got.position, 9))) == 5  # 0 to 4 of them
    assert got.position.mean() == pytest.approx(1 - s, abs=0.02)
    assert got.tokens == pytest.approx(4 * 3 * 0.4, abs=1)


def test_an_absent_worker_keeps_its_rest() -> None:
    made = setting(
        curvature=(1.0,), lr=0.1, noise=0.0, workers=1, participation=0.5, codec="randomk",
        kept=0.5, error_feedback=True,
    )  # fmt: skip
    s, chances = 1 - 0.9**3, {"absent": 0.5, "sent": 0.25, "unsent": 0.25}
    law: dict[float, float] = {}
    for turns in itertools.product(chances, repeat=3):
        x, rest = 1.0, 0.0
        for turn in turns:
            if turn != "absent":
                rest += s * x
            if turn == "sent":
                x, rest = x - rest, 0.0
        where = round(x, 9)
        law[where] = law.get(where, 0.0) + math.prod(chances[turn] for turn in turns)
    ends = run(made, seed=4, rounds=3, chains=20_000, burn_in=0.7).position[:, 0]
    places, counts = np.unique(np.round(ends, 9), return_counts=True)
    seen = dict(zip(places.tolist(), (counts / 20_000).tolist(), strict=True))
    assert seen == pytest.approx(law, abs=4 * math.sqrt(0.25 / 20_000))


def test_delay_holds_the_first_deltas_back() -> None:
    made = setting(curvature=(1.0,), lr=0.1, noise=0.0, delay=2)
    losses = [row["loss"] for row in run(made, seed=1, rounds=4, eval_every=1).rows]
    s = 1 - 0.9**3
    thetas = [1.0, 1.0, 1 - s, 1 - 2 * s]
    assert losses == pytest.approx([x**2 / 2 for x in thetas])


def test_workers_go_on_from_their_own_until_the_outer_step_comes() -> None:
    """By hand: two steps of three on the old weights, then theta with what they moved."""
    made = setting(curvature=(1.0,), lr=0.1, noise=0.0, overlap=2, outer="nesterov", outer_lr=0.7,
                   momentum=0.9)  # fmt: skip
    theta = x = 1.0
    v, expected = 0.0, []
    sent = 0.0  # the delta on its way
    for _ in range(6):
        at_hand = x
        x *= 0.9**2
        v = 0.9 * v + sent
        theta -= 0.7 * (sent + 0.9 * v)
        x = (theta + x - at_hand) * 0.9
        sent = theta - x
        expected.append(theta)
    rows = run(made, seed=1, rounds=6, eval_every=1).rows
    assert [row["loss"] for row in rows] == pytest.approx([t**2 / 2 for t in expected])


def test_rows_say_what_a_run_folder_needs() -> None:
    got = run(setting(), seed=1, rounds=25, chains=2, eval_every=10)
    assert [row["round"] for row in got.rows] == [10, 20, 25]
    assert got.rows[-1] | {"loss": 0} == {
        "split": "eval", "step": 75, "round": 25, "loss": 0, "tokens": 300,
    }  # fmt: skip
    assert json.loads(json.dumps(got.rows)) == got.rows
    assert (got.steps, got.tokens, got.diverged) == (75, 300, False)
    assert got.losses.mean() == got.loss


def test_a_seed_gives_its_numbers_again_and_another_gives_others() -> None:
    first, again, other = (
        run(setting(codec="randomk", kept=0.5), seed=n, rounds=30) for n in (1, 1, 2)
    )
    assert first.loss == again.loss != other.loss


def test_a_run_that_diverges_says_so_and_ends() -> None:
    got = run(setting(lr=2.5), seed=1, rounds=10_000)
    assert got.diverged
    assert got.loss == math.inf
    assert np.isnan(got.position).all()
    assert got.steps < 3000
    assert all(math.isfinite(float(row["loss"])) for row in got.rows)


REFUSED: list[tuple[dict[str, object], str]] = [
    ({"outer": "adam"}, "outer is 'adam'; choose one of sgd, heavy_ball, nesterov"),
    ({"lr": 0.0}, "lr is 0; it must be above 0"),
    ({"noise": math.inf}, "noise is inf; it must be 0 or more"),
    ({"attackers": 4}, "attackers is 4; it must be below the number of workers"),
    ({"curvature": ()}, "curvature is empty; give one mode or more"),
    ({"curvature": (1.0, -1.0)}, "curvature is -1; it must be 0 or more"),
    ({"optima": (1.0,)}, "optima has 1 values for 4 workers; give one each, or none"),
    ({"momentum": 0.9}, "momentum 0.9 does nothing with outer=sgd; take heavy_ball or nesterov"),
    ({"kept": 0.5}, "kept 0.5 does nothing with codec=none; take randomk"),
    ({"codec": "dither"}, "step is 0 with codec=dither; give one above 0 with dither only"),
    ({"step": 0.1}, "step is 0.1 with codec=none; give one above 0 with dither only"),
    ({"error_feedback": True}, "error_feedback does nothing with codec=none"),
    ({"tolerated": 1}, "tolerated 1 does nothing with merge=mean; take trimmed or krum"),
    ({"merge": "trimmed", "tolerated": 2}, "tolerated 2 leaves merge=trimmed nothing of 4 workers"),
    ({"merge": "krum", "tolerated": 2}, "tolerated 2 leaves merge=krum nothing of 4 workers"),
    ({"clip": 2.0}, "clip 2 does nothing with merge=mean; take clipped"),
    ({"participation": 0.5, "merge": "median"}, "participation 0.5 with merge=median; only mean"),
    ({"divide": "expected"}, "divide=expected does nothing with participation 1"),
    ({"overlap": 3}, "overlap is 3; it must be 0 or more and below inner_steps"),
    ({"overlap": 1, "delay": 1}, "overlap 1: every worker goes on from its own parameters"),
    ({"overlap": 1, "participation": 0.5}, "take delay 0, participation 1 and no worker_steps"),
    ({"weights": (1.0,) * 4, "merge": "median"}, "weights do nothing with merge=median; take mean"),
    ({"worker_steps": (1, 2, 3, 5)}, "inner_steps is 3; it must be the longest of worker_steps, 5"),
]


@pytest.mark.parametrize(("given", "text"), REFUSED, ids=[str(given) for given, _ in REFUSED])
def test_a_setting_that_means_nothing_is_refused(given: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        setting(**given)
    assert text in str(refused.value)


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        setting(lr=-1.0, delay=-1, kept=0.5)
    assert len(refused.value.faults) == 3


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"rounds": 0}, "rounds is 0; it must be 1 or more"),
        ({"chains": 0}, "chains is 0; it must be 1 or more"),
        ({"eval_every": 0}, "eval_every is 0; it must be 1 or more"),
        ({"burn_in": 1.0}, "burn_in is 1; it must be 0 or more and below 1"),
    ],
)
def test_a_run_of_nothing_is_refused(given: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        run(setting(), seed=0, **given)  # type: ignore[arg-type]
    assert text in str(refused.value)


def test_the_quadratic_and_the_forms_need_neither_torch_nor_scipy() -> None:
    program = (
        "import sys, pww.lab.quadratic, pww.lab.forms;"
        "sys.exit(any(name in sys.modules for name in ('torch', 'scipy')))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
