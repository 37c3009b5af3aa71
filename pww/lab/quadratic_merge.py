"""Merge rules and attackers of the quadratic in NumPy: the lab's independent reference for them.

The rules that train networks are in `pww.outer` and want torch; these are written from the same
definitions, over many chains at once. Shapes: C chains, M workers, K modes.
"""

from typing import assert_never

import numpy as np
import numpy.typing as npt

from pww.lab.quadratic_setting import Setting

FloatArray = npt.NDArray[np.float64]

_WEISZFELD_ROUNDS = 200
_WEISZFELD_NEAR = 1e-9


def merge(setting: Setting, delta_CMK: FloatArray, share_CM1: FloatArray) -> FloatArray:
    """The merged delta (C, K); `share_CM1` are the mean's weights, which other rules do not take.

    Source: Yin et al. 2018 (median, trimmed mean), Pillutla et al. 2022 (geometric median by
    Weiszfeld's iteration), Blanchard et al. 2017 (Krum).
    """
    match setting.merge:
        case "mean":
            return np.asarray((delta_CMK * share_CM1).sum(axis=1))
        case "median":
            return np.asarray(np.median(delta_CMK, axis=1))
        case "trimmed":
            cut = setting.tolerated
            return np.asarray(np.sort(delta_CMK, axis=1)[:, cut : setting.workers - cut].mean(1))
        case "clipped":
            norm_CM1 = np.linalg.norm(delta_CMK, axis=2, keepdims=True)
            longest = setting.clip * np.median(norm_CM1, axis=1, keepdims=True)
            factor = np.minimum(1.0, longest / np.maximum(norm_CM1, 1e-300))
            return np.asarray((delta_CMK * factor).mean(axis=1))
        case "geometric_median":
            return _geometric_median(delta_CMK)
        case "krum":
            return _krum(delta_CMK, setting.tolerated)
        case _:
            assert_never(setting.merge)


def attack_(
    setting: Setting, delta_CMK: FloatArray, own_CMK: FloatArray, generator: np.random.Generator
) -> None:
    """Puts the attackers' values, in place, where the last workers' deltas are.

    `attack_scale` is how many times as long as what is in its place: the attacker's own delta
    (`noise`, on average over its draws), the mean of the attackers' (`sign_flip`), the honest mean
    (`inner_product`). Of `shift` it is what is added in each mode.

    Args:
        setting: Who attacks and how.
        delta_CMK: What is sent; honest workers' rows are not touched.
        own_CMK: What each worker's inner steps gave, before the codec.
        generator: For `noise`.
    """
    if setting.attackers == 0:
        return
    first, scale = setting.workers - setting.attackers, setting.attack_scale
    sent = delta_CMK[:, first:]
    match setting.attack:
        case "noise":
            length = np.linalg.norm(own_CMK[:, first:], axis=2, keepdims=True)
            normal = generator.standard_normal(sent.shape) / np.sqrt(sent.shape[2])
            sent[...] = scale * length * normal
        case "sign_flip":
            sent[...] = -scale * own_CMK[:, first:].mean(axis=1, keepdims=True)
        case "inner_product":
            sent[...] = -scale * own_CMK[:, :first].mean(axis=1, keepdims=True)
        case "shift":
            sent[...] = own_CMK[:, first:] + scale
        case _:
            assert_never(setting.attack)


def merge_noise(setting: Setting, *, generator: np.random.Generator, draws: int) -> float:
    """`M Var(b)`, measured: b is the merge of M standard normals (one mode), 1 for the mean.

    Goes into `forms.robust_variance` (divided by M) for rules without a closed form. `clipped` does
    not move with a common shift, so what is measured there holds at the optimum only.
    """
    normals = generator.standard_normal((draws, setting.workers, 1))
    equal = np.full((draws, setting.workers, 1), 1.0 / setting.workers)
    return float(setting.workers * np.mean(merge(setting, normals, equal) ** 2))


def _geometric_median(delta_CMK: FloatArray) -> FloatArray:
    """The point of least summed distance; weights are capped where it is almost a delta."""
    point = np.median(delta_CMK, axis=1, keepdims=True)
    scale = np.abs(delta_CMK - point).max(axis=(1, 2), keepdims=True)
    least = np.maximum(_WEISZFELD_NEAR * scale, 1e-300)
    for _ in range(_WEISZFELD_ROUNDS):
        away = np.linalg.norm(delta_CMK - point, axis=2, keepdims=True)
        weight = 1.0 / np.maximum(away, least)
        moved = (weight * delta_CMK).sum(axis=1, keepdims=True) / weight.sum(axis=1, keepdims=True)
        still = bool(np.all(np.abs(moved - point) <= least))
        point = moved
        if still:
            break
    return np.asarray(point[:, 0])


def _krum(delta_CMK: FloatArray, attackers: int) -> FloatArray:
    """The delta whose M - f - 2 nearest others are the nearest, by summed squared distance."""
    apart = ((delta_CMK[:, :, None, :] - delta_CMK[:, None, :, :]) ** 2).sum(axis=3)
    num_near = delta_CMK.shape[1] - attackers - 2
    nearest = np.sort(apart, axis=2)[:, :, 1 : num_near + 1]  # the first is the delta itself
    chosen = nearest.sum(axis=2).argmin(axis=1)
    return np.asarray(delta_CMK[np.arange(len(delta_CMK)), chosen])
