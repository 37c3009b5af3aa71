"""Closed forms of local SGD on a quadratic: one function each, without torch."""

from pww.lab.forms.compressed import dithered_variance, omega_of, unbiased_variance
from pww.lab.forms.delay import (
    best_delayed_rate,
    best_delayed_step,
    delay_limit,
    delayed_rate,
    overlapped_variance,
)
from pww.lab.forms.drift import cure, drift, fixed_point, true_optimum
from pww.lab.forms.error_feedback import error_feedback_limit, error_feedback_variance
from pww.lab.forms.local_sgd import local_sgd_variance, stable_outer_lr
from pww.lab.forms.mode import contraction, decay, inner_variance, loss
from pww.lab.forms.momentum import (
    best_averaging_rate,
    best_heavy_ball_rate,
    best_momentum,
    best_outer_lr,
    outer_condition,
    outer_rate,
)
from pww.lab.forms.robust import mean_bias, median_bias, median_noise, robust_variance
from pww.lab.forms.unequal import (
    divided_by_expected,
    divided_by_present,
    mean_inverse_present,
    unequal_variance,
)

__all__ = [
    "best_averaging_rate", "best_delayed_rate", "best_delayed_step", "best_heavy_ball_rate",
    "best_momentum", "best_outer_lr", "contraction", "cure", "decay", "delay_limit",
    "delayed_rate", "dithered_variance", "divided_by_expected", "divided_by_present", "drift",
    "error_feedback_limit", "error_feedback_variance", "fixed_point", "inner_variance",
    "local_sgd_variance", "loss", "mean_bias", "mean_inverse_present", "median_bias",
    "median_noise", "omega_of", "outer_condition", "outer_rate", "overlapped_variance",
    "robust_variance", "stable_outer_lr", "true_optimum", "unbiased_variance", "unequal_variance",
]  # fmt: skip
