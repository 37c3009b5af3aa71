"""The outer step: weights, merge rule and outer optimisers, shared by every carrier."""

from pww.outer.optimizers import Nesterov, OuterOptimizer, Sgd, get_optimizer
from pww.outer.step import add_weighted_, fp32, norm_clips, outer_step_, weights

__all__ = [
    "Nesterov", "OuterOptimizer", "Sgd", "add_weighted_", "fp32", "get_optimizer",
    "norm_clips", "outer_step_", "weights",
]  # fmt: skip
