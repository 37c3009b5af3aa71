"""The task quadratic from a configuration: the same keys, as the simulation in NumPy has them."""

from collections.abc import Callable
from typing import Literal

from pww.config.schema.lab import DilocoMethod, LabConfig, NoAttack, Quadratic
from pww.lab import quadratic
from pww.lab.outcome import Outcome, Row
from pww.lab.quadratic_setting import Attack, Codec, Setting
from pww.lab.records import TRAFFIC

PLACES = 4096
"""A codec's `keep` is of so many."""


def run(config: LabConfig, task: Quadratic, *, write: Callable[[Row], None]) -> Outcome:
    """Simulates; `lab.steps` and `lab.eval_every` count inner steps. No bytes: nothing is encoded.

    Raises:
        ConfigError: the simulation does not know a combination.
    """
    diloco = config.diloco
    assert diloco is not None, "check_lab.quadratic_fits"
    made = quadratic.run(
        setting(config, task),
        seed=config.seed,
        rounds=config.lab.steps // diloco.inner_steps,
        chains=task.chains,
        burn_in=task.burn_in,
        eval_every=max(1, config.lab.eval_every // diloco.inner_steps),
    )
    for row in made.rows:
        write(dict(row))
    return Outcome(
        loss=made.loss, diverged=made.diverged, steps=made.steps, tokens=made.tokens,
        bytes=dict.fromkeys(TRAFFIC, 0),
    )  # fmt: skip


def setting(config: LabConfig, task: Quadratic) -> Setting:
    """What is simulated; `check_lab` let nothing pass that has no place here."""
    method, diloco, codec = config.method, config.diloco, config.codec
    assert isinstance(method, DilocoMethod), "check_lab.quadratic_fits"
    assert diloco is not None, "check_lab.outer_is_there"
    merge = config.merge
    kind: Codec = "randomk" if codec.kind == "randomk" else "dither" if task.dither else "none"
    attackers, attack, scale = _attack(config)
    return Setting(
        curvature=task.curvature, workers=config.workers, inner_steps=diloco.inner_steps,
        lr=config.optim.lr, noise=task.noise, outer=diloco.outer.optimizer,
        outer_lr=diloco.outer.lr, momentum=diloco.outer.momentum, codec=kind,
        kept=codec.keep / PLACES if codec.kind == "randomk" else 1.0, step=task.dither,
        error_feedback=codec.kind == "randomk" and codec.feedback, delay=method.delay,
        overlap=method.overlap_steps,
        merge="geometric_median" if merge.kind == "geometric" else merge.kind,
        tolerated=_tolerated(config), clip=merge.limit if merge.kind == "clipped" else 1.0,
        attackers=attackers, attack=attack, attack_scale=scale,
        participation=method.participation, divide=method.divide_by,
        curvature_factors=task.curvature_factors, optima=task.optima,
        worker_steps=method.worker_steps, weights=task.weights, start=task.start,
    )  # fmt: skip


def _tolerated(config: LabConfig) -> int:
    match config.merge.kind:
        case "trimmed":
            return config.merge.trim
        case "krum":
            return config.merge.attackers
        case _:
            return 0


def _attack(config: LabConfig) -> tuple[int, Attack, float]:
    attack = config.attack
    if isinstance(attack, NoAttack):
        return 0, "noise", 1.0
    kinds: dict[Literal["noise", "sign_flip", "inner_product"], Attack]
    kinds = {"noise": "noise", "sign_flip": "sign_flip", "inner_product": "inner_product"}
    return attack.workers, kinds[attack.kind], attack.scale
