"""The outer step: weights, merge rule and outer optimisers, shared by every carrier."""

from pww.outer.optimizers import Nesterov, OuterOptimizer, Sgd, get_optimizer
from pww.outer.step import accumulate, fp32, outer_step_, weights

__all__ = [
    "Nesterov", "OuterOptimizer", "Sgd", "accumulate", "fp32", "get_optimizer", "outer_step_",
    "weights",
]  # fmt: skip
