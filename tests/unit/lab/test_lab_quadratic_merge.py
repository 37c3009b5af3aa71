"""The quadratic's merge rules and attackers against their definitions, one chain at a time."""

import itertools

import numpy as np
import numpy.typing as npt
import pytest

from pww.lab.quadratic import run
from pww.lab.quadratic_merge import attack_, merge, merge_noise
from pww.lab.quadratic_setting import Setting

Array = npt.NDArray[np.float64]


def setting(**given: object) -> Setting:
    return Setting(**({"curvature": (1.0, 0.3), "workers": 4, "inner_steps": 3} | given))  # type: ignore[arg-type]


def deltas() -> Array:
    return np.random.default_rng(8).standard_normal((5, 7, 3))


def merged(delta: Array, **given: object) -> Array:
    made = setting(workers=delta.shape[1], **given)
    return merge(made, delta, np.full((*delta.shape[:2], 1), 1 / delta.shape[1]))


def test_trimmed_mean_and_median_by_sorting() -> None:
    delta = deltas()
    for chain, mode in itertools.product(range(5), range(3)):
        ordered = sorted(delta[chain, :, mode])
        assert merged(delta, merge="trimmed", tolerated=2)[chain, mode] == pytest.approx(
            sum(ordered[2:5]) / 3
        )
        assert merged(delta, merge="median")[chain, mode] == ordered[3]


def test_clipped_mean_shortens_only_the_long() -> None:
    delta = deltas()
    delta[:, 0] *= 100
    norms = np.linalg.norm(delta, axis=2)
    for chain in range(5):
        longest = 1.5 * np.median(norms[chain])
        by_hand = [
            d if n <= longest else d / n * longest
            for d, n in zip(delta[chain], norms[chain], strict=True)
        ]
        np.testing.assert_allclose(
            merged(delta, merge="clipped", clip=1.5)[chain], np.mean(by_hand, axis=0)
        )


def test_geometric_median_is_where_the_unit_vectors_cancel() -> None:
    delta = deltas()
    point = merged(delta, merge="geometric_median")
    away = delta - point[:, None]
    units = away / np.linalg.norm(away, axis=2, keepdims=True)
    np.testing.assert_allclose(units.sum(axis=1), 0, atol=1e-6)


def test_geometric_median_of_a_majority_in_one_place_is_that_place() -> None:
    delta = deltas()
    delta[:, :4] = delta[:, :1]
    np.testing.assert_allclose(merged(delta, merge="geometric_median"), delta[:, 0], atol=1e-6)


def test_krum_takes_the_delta_with_the_nearest_neighbours() -> None:
    delta = deltas()
    got = merged(delta, merge="krum", tolerated=2)
    for chain in range(5):
        scores = []
        for i in range(7):
            apart = sorted(
                sum((delta[chain, i] - delta[chain, j]) ** 2) for j in range(7) if j != i
            )
            scores.append(sum(apart[: 7 - 2 - 2]))
        np.testing.assert_array_equal(got[chain], delta[chain, int(np.argmin(scores))])


@pytest.mark.parametrize(
    ("rule", "given"),
    [
        ("median", {}), ("trimmed", {"tolerated": 2}), ("geometric_median", {}),
        ("krum", {"tolerated": 2}),
    ],
)  # fmt: skip
def test_robust_rules_ignore_two_far_attackers_of_seven(
    rule: str, given: dict[str, object]
) -> None:
    delta = deltas()
    delta[:, 5:] = 1e6
    assert np.abs(merged(delta, merge=rule, **given)).max() < 4
    assert np.abs(merged(delta, merge="mean")).min() > 1e5


def test_noise_of_the_rules_without_a_closed_form() -> None:
    def noise(**given: object) -> float:
        return merge_noise(
            setting(workers=9, **given), generator=np.random.default_rng(1), draws=40_000
        )

    assert noise() == pytest.approx(1, rel=0.03)
    assert noise(merge="median") == pytest.approx(1.495, rel=0.03)
    # from the mean to the median, as more is cut
    cuts = [noise(merge="trimmed", tolerated=n) for n in (0, 2, 4)]
    assert cuts[0] < cuts[1] < cuts[2] == pytest.approx(1.495, rel=0.03)
    assert noise(merge="geometric_median") == pytest.approx(1.495, rel=0.03)
    assert noise(merge="krum", tolerated=3) > 3  # one delta of nine, if the most central


@pytest.mark.parametrize("kind", ["noise", "sign_flip", "inner_product", "shift"])
def test_attackers_send_what_their_kind_says(kind: str) -> None:
    own, sent = deltas(), deltas()
    made = setting(workers=7, attackers=3, attack=kind, attack_scale=2.0)
    attack_(made, sent, own, np.random.default_rng(2))
    np.testing.assert_array_equal(sent[:, :4], own[:, :4])
    theirs = sent[:, 4:]
    match kind:
        case "noise":
            ratio = np.square(theirs).sum(2).mean() / np.square(own[:, 4:]).sum(2).mean()
            assert ratio == pytest.approx(4, rel=0.3)  # twice as long, and so with any deltas
            hundred = 100 * own
            attack_(made, hundred, 100 * own, np.random.default_rng(2))
            np.testing.assert_allclose(hundred[:, 4:], 100 * theirs)
            assert not np.allclose(theirs[:, 0], theirs[:, 1])
        case "sign_flip":
            np.testing.assert_allclose(theirs, -2 * own[:, 4:].mean(1, keepdims=True) + 0 * theirs)
        case "inner_product":
            np.testing.assert_allclose(theirs, -2 * own[:, :4].mean(1, keepdims=True) + 0 * theirs)
        case _:
            np.testing.assert_allclose(theirs, own[:, 4:] + 2)


def test_coordinated_attackers_cost_the_median_more_than_independent_ones() -> None:
    def loss(**given: object) -> float:
        made = setting(workers=9, merge="median", **given)
        return run(made, seed=7, rounds=300, chains=64).loss

    honest, alone = loss(), loss(attackers=4, attack_scale=10.0)
    together = loss(attackers=4, attack="inner_product", attack_scale=10.0)
    assert honest < alone < together
