"""The task `quadratic`: M workers on a noisy quadratic, simulated step by step in NumPy.

Every inner step of every worker is drawn, so that the closed forms of `pww.lab.forms` are checked
against what they describe and not against themselves. Chains are independent repetitions that one
call steps together. Shapes: C chains, M workers, K modes. No torch.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import assert_never

import numpy as np
import numpy.typing as npt

from pww.errors import ConfigError
from pww.lab.quadratic_merge import attack_, merge
from pww.lab.quadratic_setting import Setting

FloatArray = npt.NDArray[np.float64]

DIVERGED = 1e12
"""A loss above this, or none at all, ends a run as diverged."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run gave. Losses are above the least of the workers' mean loss."""

    rows: list[dict[str, str | int | float]]
    """Evaluations, as `metrics.jsonl` has them; the loss is the chains' mean at that round."""
    loss: float
    """Mean over rounds after the burn-in and over chains; inf if diverged."""
    losses: FloatArray
    """The same of each chain (C): independent, so their spread is the interval of `loss`."""
    position: FloatArray
    """Mean of theta after the burn-in (C, K)."""
    diverged: bool
    steps: int
    """Inner steps of the longest worker, over all rounds."""
    tokens: int
    """Gradients drawn by workers that took part, a chain's mean."""


def run(
    setting: Setting,
    *,
    seed: int,
    rounds: int = 1000,
    chains: int = 1,
    burn_in: float = 0.5,
    eval_every: int = 50,
) -> Outcome:
    """Trains, and takes the stationary loss from what follows the burn-in.

    Args:
        setting: What is studied.
        seed: Of all that is drawn; the same one gives the same numbers.
        rounds: Outer steps.
        chains: Independent repetitions at once.
        burn_in: Share of the rounds left out of the stationary loss, from 0 to below 1.
        eval_every: Rounds between rows; the last round always has one.

    Raises:
        ConfigError: which number is out of its range.
    """
    _check(rounds=rounds, chains=chains, burn_in=burn_in, eval_every=eval_every)
    sim = _Simulation(setting, np.random.default_rng(seed), chains)
    rows: list[dict[str, str | int | float]] = []
    first = int(rounds * burn_in)
    losses, position = np.zeros(chains), np.zeros_like(sim.theta_CK)
    tokens = done = 0
    diverged = False
    with np.errstate(over="ignore", invalid="ignore"):  # what diverges is told, not warned of
        for done in range(1, rounds + 1):
            tokens += sim.round_()
            now = sim.loss_C()
            mean = float(now.mean())
            diverged = not mean < DIVERGED
            if diverged:
                break
            if done > first:
                losses += now
                position += sim.theta_CK
            if done % eval_every == 0 or done == rounds:
                rows.append(_row(done, setting.inner_steps, mean, tokens // chains))
    kept = rounds - first
    losses = np.full(chains, math.inf) if diverged else losses / kept
    position = np.full_like(position, math.nan) if diverged else position / kept
    return Outcome(
        rows=rows, loss=float(losses.mean()), losses=losses, position=position,
        diverged=diverged, steps=done * setting.inner_steps, tokens=tokens // chains,
    )  # fmt: skip


class _Simulation:
    """The state of all chains, and one round of them."""

    def __init__(self, setting: Setting, generator: np.random.Generator, chains: int) -> None:
        self._setting, self._generator = setting, generator
        num_modes, m = len(setting.curvature), setting.workers
        factor_M1 = np.array(setting.curvature_factors or (1.0,) * m)[:, None]
        self._curvature_MK = factor_M1 * np.array(setting.curvature)
        self._optimum_M1 = np.array(setting.optima or (0.0,) * m)[:, None]
        self._best = float((factor_M1 * self._optimum_M1).sum() / factor_M1.sum())
        weights = np.array(setting.weights or (1.0,) * m)
        self._weight_M1 = (weights / weights.sum())[:, None]
        self._steps_M1 = np.array(setting.steps)[:, None]
        self.theta_CK = np.full((chains, num_modes), self._best + setting.start)
        self._momentum_CK = np.zeros_like(self.theta_CK)
        self._rest_CMK = np.zeros((chains, m, num_modes))
        self._sent_CMK = np.repeat(self.theta_CK[:, None, :], m, axis=1)
        on_its_way = 1 if setting.overlap else setting.delay
        late = [np.zeros_like(self.theta_CK) for _ in range(on_its_way)]
        self._late: deque[FloatArray] = deque(late)

    def loss_C(self) -> FloatArray:
        """Mean of the workers' losses above its least."""
        a_K = self._curvature_MK.mean(axis=0)
        return np.asarray((a_K / 2.0 * (self.theta_CK - self._best) ** 2).sum(axis=1))

    def round_(self) -> int:
        """Inner steps, codec, attackers, merge, delay, outer step; how many gradients were drawn.

        Everybody draws, whether present or not; who is absent keeps its rest for another round. A
        round with nobody merges a delta of zero.
        """
        setting = self._setting
        own_CMK = self._inner_steps()
        present_CM1 = self._present(own_CMK.shape[0])
        sent_CMK = self._encoded(own_CMK, present_CM1)
        attack_(setting, sent_CMK, own_CMK, self._generator)
        self._late.append(merge(setting, sent_CMK, self._shares(present_CM1)))
        if not setting.overlap:
            self._outer_step_(self._late.popleft())
        return int((present_CM1 * self._steps_M1).sum())

    def _inner_steps(self) -> FloatArray:
        """Each worker's delta after its own number of steps.

        With `overlap` the delta of the phase before arrives on the way: workers went on from what
        they had, and move over to the new theta with what they did since.
        """
        setting = self._setting
        at_hand_CMK = self._sent_CMK
        if setting.overlap:
            x = at_hand_CMK.copy()
        else:
            x = np.repeat(self.theta_CK[:, None, :], setting.workers, axis=1)
        xi = np.empty_like(x)
        for taken in range(setting.inner_steps):
            if taken and taken == setting.overlap:
                self._outer_step_(self._late.popleft())
                x = self.theta_CK[:, None, :] + (x - at_hand_CMK)
            self._generator.standard_normal(out=xi)
            gradient = self._curvature_MK * (x - self._optimum_M1) + setting.noise * xi
            if setting.worker_steps:
                gradient *= self._steps_M1 > taken
            x -= setting.lr * gradient
        self._sent_CMK = x
        return np.asarray(self.theta_CK[:, None, :] - x)

    def _present(self, chains: int) -> npt.NDArray[np.bool_]:
        chance, shape = self._setting.participation, (chains, self._setting.workers, 1)
        if chance == 1.0:
            return np.ones(shape, dtype=np.bool_)
        return self._generator.random(shape) < chance

    def _encoded(self, own_CMK: FloatArray, present_CM1: npt.NDArray[np.bool_]) -> FloatArray:
        """What the other end decodes; rests are kept of those present."""
        setting = self._setting
        wanted = own_CMK + self._rest_CMK if setting.error_feedback else own_CMK
        match setting.codec:
            case "none":
                return wanted.copy()
            case "randomk":
                kept = self._generator.random(wanted.shape) < setting.kept
                sent = wanted * kept
                if not setting.error_feedback:
                    sent /= setting.kept
            case "dither":
                u = setting.step * (self._generator.random(wanted.shape) - 0.5)
                sent = setting.step * np.rint((wanted + u) / setting.step) - u
            case _:
                assert_never(setting.codec)
        if setting.error_feedback:
            self._rest_CMK = np.where(present_CM1, wanted - sent, self._rest_CMK)
        return sent

    def _shares(self, present_CM1: npt.NDArray[np.bool_]) -> FloatArray:
        """The mean's weights; they sum to 1, in each round or on average."""
        share = self._weight_M1 * present_CM1
        if self._setting.divide == "expected":
            return np.asarray(share / self._setting.participation)
        total = share.sum(axis=1, keepdims=True)
        return np.asarray(share / np.where(total > 0.0, total, 1.0))

    def _outer_step_(self, delta_CK: FloatArray) -> None:
        setting = self._setting
        if setting.outer == "sgd":
            self.theta_CK -= setting.outer_lr * delta_CK
            return
        self._momentum_CK = setting.momentum * self._momentum_CK + delta_CK
        ahead = self._momentum_CK
        if setting.outer == "nesterov":
            ahead = delta_CK + setting.momentum * self._momentum_CK
        self.theta_CK -= setting.outer_lr * ahead


def _row(done: int, steps: int, loss: float, tokens: int) -> dict[str, str | int | float]:
    return {"split": "eval", "step": done * steps, "round": done, "loss": loss, "tokens": tokens}


def _check(*, rounds: int, chains: int, burn_in: float, eval_every: int) -> None:
    counts = {"rounds": rounds, "chains": chains, "eval_every": eval_every}
    faults = [
        f"{name} is {given}; it must be 1 or more" for name, given in counts.items() if given < 1
    ]
    if not 0.0 <= burn_in < 1.0:
        faults.append(f"burn_in is {burn_in:g}; it must be 0 or more and below 1")
    if faults:
        raise ConfigError(faults)
