"""A study on one machine: `pww.lab`. What a method has no use for is no part of its section."""

from typing import Annotated, Literal

from pydantic import Field

from pww.config.schema.base import Decay, Fraction, Name, Positive, Rate, Section
from pww.config.schema.codec import Codec
from pww.config.schema.model import AdamW, LanguageModel, Sgd
from pww.config.schema.outer import Outer
from pww.config.schema.run import Launcher
from pww.config.schema.site import Site

Share = Annotated[float, Field(gt=0, le=1)]
Rates = Annotated[tuple[Rate, ...], Field(strict=False)]
Counts = Annotated[tuple[Positive, ...], Field(strict=False)]


class Tune(Section):
    """Candidates; with none, the configured value is used as it is."""

    lr: Rates


class Study(Section):
    """Where runs are recorded, how many, how long."""

    study: Name
    root: str  # studies are kept below it
    seeds: Positive
    steps: Positive  # of each worker
    tune: Tune
    eval_every: Positive  # steps
    eval_windows: Positive
    log_every: Positive  # steps between two `train` rows
    threads: Positive


class TextTask(Section):
    """A network that learns to foretell characters."""

    text: Literal["auto", "tinyshakespeare", "pydocs"]
    roots: Annotated[tuple[str, ...], Field(strict=False)]
    split: Literal["iid", "author"]  # what a worker's text is


class CharLm(TextTask):
    """A small GPT."""

    kind: Literal["charlm"]
    size: Literal["toy", "413k", "915k"]


class ModelTask(TextTask):
    """The model of the tree."""

    kind: Literal["model"]


class Quadratic(Section):
    """A noisy quadratic, worker by worker, in NumPy."""

    kind: Literal["quadratic"]
    curvature: Annotated[tuple[Rate, ...], Field(strict=False, min_length=1)]  # of each mode
    noise: Annotated[float, Field(ge=0)]
    start: float
    chains: Positive
    burn_in: Decay  # share of the rounds left out of the stationary loss
    dither: Annotated[float, Field(ge=0)]  # step of a subtractive dither; 0: none
    curvature_factors: Rates  # of each worker; []: 1 each
    optima: Annotated[tuple[float, ...], Field(strict=False)]  # of each worker; []: 0 each
    weights: Rates  # of each worker; []: equal


Task = Annotated[CharLm | ModelTask | Quadratic, Field(discriminator="kind")]
LabOptim = Annotated[AdamW | Sgd, Field(discriminator="name")]


class SyncMethod(Section):
    """Gradients are exchanged at every step, one optimiser steps for all."""

    kind: Literal["sync"]
    name: Name
    feedback_decay: Fraction


class DilocoMethod(Section):
    """H inner steps apart, then an outer step."""

    kind: Literal["diloco"]
    name: Name
    feedback_decay: Fraction  # of the residual, each round
    fragments: Positive
    delay: Annotated[int, Field(ge=0, le=1000)]  # rounds between an exchange and its outer step
    overlap_steps: Annotated[int, Field(ge=0)]  # inner steps before an outer step arrives
    eager: bool
    participation: Share
    divide_by: Literal["present", "expected"]
    worker_steps: Counts  # [] : H of each
    weighting: Literal["tokens", "equal"]


class DgcMethod(Section):
    """Deep gradient compression."""

    kind: Literal["dgc"]
    name: Name
    momentum: Decay


class DemoMethod(Section):
    """Decoupled momentum."""

    kind: Literal["demo"]
    name: Name
    momentum: Decay


Method = Annotated[SyncMethod | DilocoMethod | DgcMethod | DemoMethod, Field(discriminator="kind")]


class LabDiloco(Section):
    """The outer loop; keys are those of a run's `diloco`."""

    inner_steps: Positive
    outer: Outer


class Mean(Section):
    """The weighted mean."""

    kind: Literal["mean"]


class Median(Section):
    """The median of each coordinate."""

    kind: Literal["median"]


class Trimmed(Section):
    """The mean of each coordinate without its extremes."""

    kind: Literal["trimmed"]
    trim: Positive  # values dropped at either end


class Clipped(Section):
    """The weighted mean of deltas whose norms are limited."""

    kind: Literal["clipped"]
    limit: Annotated[float, Field(ge=1, le=1e9)]  # times the median norm


class Geometric(Section):
    """The point with the least sum of distances."""

    kind: Literal["geometric"]
    iterations: Annotated[int, Field(ge=1, le=1000)]


class Krum(Section):
    """The delta that is nearest to its neighbours."""

    kind: Literal["krum"]
    attackers: Annotated[int, Field(ge=0)]  # expected at most


Merge = Annotated[Mean | Median | Trimmed | Clipped | Geometric | Krum, Field(discriminator="kind")]
"""How deltas become one."""


class NoAttack(Section):
    """Every worker is honest."""

    kind: Literal["none"]


class Attack(Section):
    """The last workers send what harms."""

    kind: Literal["noise", "sign_flip", "inner_product"]
    workers: Positive
    scale: Rate  # times as long as what it stands for


class Together(Attack):
    """An attack that each makes alone, or all with one vector."""

    kind: Literal["noise", "sign_flip"]
    coordinated: bool


class InnerProduct(Attack):
    """All send what the honest found, the other way round."""

    kind: Literal["inner_product"]


AnyAttack = Annotated[NoAttack | Together | InnerProduct, Field(discriminator="kind")]


class LabConfig(Section):
    """One cell of a study."""

    workers: Positive
    seed: Annotated[int, Field(ge=0, lt=2**31)]
    dry: bool
    site: Site
    launcher: Launcher
    lab: Study
    task: Task
    model: Annotated[LanguageModel, Field(discriminator="kind")] | None = None  # of task=model
    method: Method
    diloco: LabDiloco | None = None  # of the methods that have an outer loop
    optim: LabOptim
    codec: Codec
    merge: Merge
    attack: AnyAttack
