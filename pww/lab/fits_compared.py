"""The composition rule against its rival, on cells that neither was fitted to."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pww.errors import ConfigError
from pww.lab.fits import Cell, drawn, fit, grouped, mean_error, num_constants, refusals


@dataclass(frozen=True, slots=True)
class Comparison:
    """What random splits said."""

    rule_error: float
    """Mean over splits of the held-out cells' mean of |predicted - measured| / measured."""
    rival_error: float
    rule_better: int
    """Splits in which the rule's error is the smaller."""
    splits: int


def compare(
    cells: Sequence[Cell], *, splits: int = 300, fitted_share: float = 1 / 3, seed: int = 0
) -> Comparison:
    """Fits both laws to a random share of the cells and judges them by the rest, many times.

    All repetitions of a cell are on the same side. A split whose fitted side determines no fit of
    the rival (which asks for more) is drawn anew, so that neither is judged by a fit of chance.

    Raises:
        ConfigError: the cells, or that share of them, determine no fit.
    """
    if splits < 1 or not 0.0 < fitted_share < 1.0:
        raise ConfigError(
            [
                f"splits {splits} with fitted_share {fitted_share:g}; splits must be 1 or more and "
                "the share between 0 and 1"
            ]
        )
    groups = grouped(cells)
    faults = refusals(cells, law="rule") or refusals(cells, law="rival")
    num_fitted, needed = round(fitted_share * len(groups)), num_constants("rival")
    if not faults and not needed <= num_fitted < len(groups):
        faults = [
            f"{fitted_share:.2f} of {len(groups)} different cells is {num_fitted}; the rival has "
            f"{needed} constants and something must be held out: measure more cells"
        ]
    if faults:
        raise ConfigError(faults)
    generator = np.random.default_rng(seed)

    def draw() -> list[list[Cell]]:
        order = generator.permutation(len(groups))[:num_fitted]
        return [groups[i] for i in order]

    rule, rival = np.empty(splits), np.empty(splits)
    for split in range(splits):
        picked = drawn(draw, law="rival")
        inside = [cell for group in picked for cell in group]
        places = {(cell.omega, cell.inner_steps) for cell in inside}
        outside = [c for c in cells if (c.omega, c.inner_steps) not in places]
        rule[split] = mean_error(fit(inside, law="rule"), outside)
        rival[split] = mean_error(fit(inside, law="rival"), outside)
    better = int((rule < rival).sum())
    return Comparison(float(rule.mean()), float(rival.mean()), better, splits)
