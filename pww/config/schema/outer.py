"""The outer loop, the leases, and how bytes travel."""

from typing import Annotated, Literal

from pydantic import Field

from pww.config.schema.base import Fraction, Positive, Seconds, Section


class Outer(Section):
    """The outer optimiser."""

    optimizer: Literal["nesterov", "sgd"]
    lr: Annotated[float, Field(gt=0, le=1e9)]  # far inside fp32, in which the step is made
    momentum: Annotated[float, Field(ge=0, lt=1)]
    solo_full_step: bool  # a round with one contributor has lr 1
    # where the replicas of an allocation keep theta and momentum; older runs have no such key
    device: Literal["model", "cpu"] = "model"


class Diloco(Section):
    """The outer loop."""

    replicas: Positive  # inside this allocation
    inner_steps: Positive  # H
    recalibrate_bn: bool = False  # running statistics are estimated anew at theta, to evaluate it
    phase: Literal["fixed", "balanced"]  # H everywhere, or fewer steps where they take longer
    overlap: bool  # the next phase runs while a delta travels
    outer: Outer
    staleness_window: Annotated[int, Field(ge=0)]
    staleness_discount: Annotated[float, Field(ge=0, le=1e9)]  # a weight in fp32 is never 0
    norm_clip: Annotated[float, Field(ge=0, le=1e9)]  # times the median norm; 0: no clipping
    quorum: Fraction  # share of the expected replicas that must have delivered
    grace: Annotated[float, Field(ge=0)]  # wait for the rest this share of the round's length


class Darl(Section):
    """Leases."""

    block_windows: Positive  # K
    seed: Annotated[int, Field(ge=0, lt=2**62)]
    epochs: Positive
    ttl_floor_s: Seconds
    heartbeat_s: Seconds
    detect_s: Seconds  # a silent replica counts as gone after this long
    restore_grace_s: Seconds  # leases are extended by it after a restart of the coordinator
    ahead: bool  # the next span is leased while a phase runs
    max_attempts: Annotated[int, Field(ge=0)]  # a block reclaimed so often is set aside; 0: never


class Transport(Section):
    """How bytes travel."""

    kind: Literal["auto", "inline", "blob", "file"]
    limit_mb: Positive  # largest payload that may travel inside Flower messages
    url: str  # for `file`: an fsspec URL; "none"
    # codec of the update that sites apply, by the name that payloads have
    down: Literal["whole", "bf16", "fp16", "int8", "int4", "topk-64-b2"]
    timeout_s: Seconds  # of one request
    poll_s: Seconds  # how often a site asks for its next instruction
    retry_first_s: Seconds
    retry_max_s: Seconds

    @property
    def inline_mb(self) -> int:
        """Largest payload that travels inside a message where another way is open."""
        return 0 if self.kind in ("blob", "file") else self.limit_mb
