"""What a study on the quadratic is made of, and every combination that means nothing refused."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from pww.errors import ConfigError

Outer = Literal["sgd", "heavy_ball", "nesterov"]
Codec = Literal["none", "randomk", "dither"]
Merge = Literal["mean", "median", "trimmed", "clipped", "geometric_median", "krum"]
Attack = Literal["noise", "sign_flip", "inner_product", "shift"]
Divide = Literal["present", "expected"]


@dataclass(frozen=True, slots=True)
class Setting:
    """M workers, H inner steps of noisy SGD on a quadratic, and what lies between them.

    Worker i's loss is `sum over modes of (f_i a / 2) (x - c_i)^2` with gradient noise sigma. A
    tuple that is empty means the same for all: curvature as it is, optimum 0, H steps, weight 1.

    Args:
        curvature: a of each mode.
        workers: M.
        inner_steps: H.
        lr: eta, the inner learning rate.
        noise: sigma of a worker's gradient, in each mode.
        outer: The outer optimiser; `heavy_ball` and `nesterov` take a momentum.
        outer_lr: alpha.
        momentum: beta.
        codec: `randomk` sends each coordinate with probability `kept`; `dither` quantises with
            steps of `step`, subtractively.
        kept: rho. Sent times 1/rho (unbiased), or as it is with error feedback.
        step: D, in units of the parameter.
        error_feedback: What was not sent is added to the next delta.
        delay: tau, the rounds by which a merged delta comes late.
        overlap: n, the inner steps by which it does; workers keep what they moved meanwhile.
        merge: The merge rule.
        tolerated: Values cut at each end by `trimmed`, attackers assumed by `krum`.
        clip: Longest norm that `clipped` lets pass, in medians of the norms; 1 or more.
        attackers: How many of the workers, the last ones, send something else.
        attack: `noise`: each its own, `attack_scale` times as long as its delta. `sign_flip`:
            all the same, minus `attack_scale` times the mean of their own deltas.
            `inner_product`: all the same, minus `attack_scale` times the honest mean. `shift`:
            their deltas plus `attack_scale` in every mode.
        attack_scale: How many times as long; in units of the parameter for `shift`.
        participation: Chance that a worker takes part in a round.
        divide: By the weights of those `present`, or by what is `expected` of all.
        curvature_factors: f_i of each worker.
        optima: c_i of each worker, the same in each mode.
        worker_steps: H_i of each worker; H is the longest.
        weights: p_i of each worker in the mean; their sum is made 1.
        start: Where theta starts in every mode, away from the optimum.

    Raises:
        ConfigError: all faults, one a line.
    """

    curvature: tuple[float, ...] = (1.0, 0.25, 0.05)
    workers: int = 8
    inner_steps: int = 16
    lr: float = 0.2
    noise: float = 1.0
    outer: Outer = "sgd"
    outer_lr: float = 1.0
    momentum: float = 0.0
    codec: Codec = "none"
    kept: float = 1.0
    step: float = 0.0
    error_feedback: bool = False
    delay: int = 0
    overlap: int = 0
    merge: Merge = "mean"
    tolerated: int = 0
    clip: float = 1.0
    attackers: int = 0
    attack: Attack = "noise"
    attack_scale: float = 1.0
    participation: float = 1.0
    divide: Divide = "present"
    curvature_factors: tuple[float, ...] = ()
    optima: tuple[float, ...] = ()
    worker_steps: tuple[int, ...] = ()
    weights: tuple[float, ...] = ()
    start: float = 1.0

    def __post_init__(self) -> None:
        faults = [*self._words(), *self._ranges(), *self._per_worker(), *self._combinations()]
        if faults:
            raise ConfigError(faults)

    @property
    def steps(self) -> tuple[int, ...]:
        """H_i of each worker."""
        return self.worker_steps or (self.inner_steps,) * self.workers

    def _words(self) -> list[str]:
        choices = (
            ("outer", self.outer, Outer), ("codec", self.codec, Codec),
            ("merge", self.merge, Merge), ("attack", self.attack, Attack),
            ("divide", self.divide, Divide),
        )  # fmt: skip
        return [
            f"{name} is {given!r}; choose one of {', '.join(get_args(words))}"
            for name, given, words in choices
            if given not in get_args(words)
        ]

    def _ranges(self) -> list[str]:
        most = math.inf
        rules: list[tuple[str, float, float, float, str]] = [
            ("workers", self.workers, 1, most, "1 or more"),
            ("inner_steps", self.inner_steps, 1, most, "1 or more"),
            ("lr", self.lr, 1e-300, most, "above 0"),
            ("noise", self.noise, 0, most, "0 or more"),
            ("outer_lr", self.outer_lr, 1e-300, most, "above 0"),
            ("momentum", self.momentum, 0, 1 - 1e-9, "0 or more and below 1"),
            ("kept", self.kept, 1e-300, 1, "above 0 and at most 1"),
            ("step", self.step, 0, most, "0 or more"),
            ("delay", self.delay, 0, most, "0 or more"),
            ("overlap", self.overlap, 0, self.inner_steps - 1, "0 or more and below inner_steps"),
            ("tolerated", self.tolerated, 0, most, "0 or more"),
            ("clip", self.clip, 1, most, "1 or more"),
            ("attackers", self.attackers, 0, self.workers - 1, "below the number of workers"),
            ("attack_scale", self.attack_scale, 0, most, "0 or more"),
            ("participation", self.participation, 1e-300, 1, "above 0 and at most 1"),
            ("start", self.start, -most, most, "finite"),
        ]
        rules += [("curvature", a, 0, most, "0 or more") for a in self.curvature]
        rules += [("curvature_factors", f, 1e-300, most, "above 0") for f in self.curvature_factors]
        rules += [("optima", c, -most, most, "finite") for c in self.optima]
        rules += [("worker_steps", h, 1, most, "1 or more") for h in self.worker_steps]
        rules += [("weights", p, 1e-300, most, "above 0") for p in self.weights]
        faults = [
            f"{name} is {given:g}; it must be {rule}"
            for name, given, low, high, rule in rules
            if not (math.isfinite(given) and low <= given <= high)
        ]
        return faults + ([] if self.curvature else ["curvature is empty; give one mode or more"])

    def _per_worker(self) -> list[str]:
        lists = {
            "curvature_factors": self.curvature_factors, "optima": self.optima,
            "worker_steps": self.worker_steps, "weights": self.weights,
        }  # fmt: skip
        return [
            f"{name} has {len(values)} values for {self.workers} workers; give one each, or none"
            for name, values in lists.items()
            if values and len(values) != self.workers
        ]

    def _combinations(self) -> list[str]:
        """What would be accepted and ignored, or is not defined."""
        cut = 2 * self.tolerated if self.merge == "trimmed" else self.tolerated + 2
        merge = f"merge={self.merge}"
        rules = [
            (self.momentum > 0 and self.outer == "sgd",
             f"momentum {self.momentum:g} does nothing with outer=sgd; "
             "take heavy_ball or nesterov"),
            (self.kept < 1 and self.codec != "randomk",
             f"kept {self.kept:g} does nothing with codec={self.codec}; take randomk"),
            ((self.step > 0) != (self.codec == "dither"),
             f"step is {self.step:g} with codec={self.codec}; give one above 0 with dither only"),
            (self.error_feedback and self.codec == "none",
             "error_feedback does nothing with codec=none, which leaves no rest; "
             "take randomk or dither"),
            (self.tolerated > 0 and self.merge not in ("trimmed", "krum"),
             f"tolerated {self.tolerated} does nothing with {merge}; take trimmed or krum"),
            (self.merge in ("trimmed", "krum") and cut >= self.workers,
             f"tolerated {self.tolerated} leaves {merge} nothing of {self.workers} workers; "
             "lower it or add workers"),
            (self.clip > 1 and self.merge != "clipped",
             f"clip {self.clip:g} does nothing with {merge}; take clipped"),
            (self.participation < 1 and self.merge != "mean",
             f"participation {self.participation:g} with {merge}; only mean knows absent workers"),
            (self.divide == "expected" and self.participation == 1,
             "divide=expected does nothing with participation 1; lower it or leave divide"),
            (self.overlap > 0
             and (self.delay > 0 or self.participation < 1 or bool(self.worker_steps)),
             f"overlap {self.overlap}: every worker goes on from its own parameters; "
             "take delay 0, participation 1 and no worker_steps"),
            (bool(self.weights) and self.merge != "mean",
             f"weights do nothing with {merge}; take mean"),
            (bool(self.worker_steps) and self.inner_steps != max(self.worker_steps, default=0),
             f"inner_steps is {self.inner_steps}; it must be the longest of worker_steps, "
             f"{max(self.worker_steps, default=0)}"),
        ]  # fmt: skip
        return [text for wrong, text in rules if wrong]
