"""The frozen, strict shape of a configuration; every value's home is `conf/`, so no defaults here.

Hydra's structured configs drop unknown `+keys` silently and know no `Literal`; pydantic refuses
both.
One class per config group; a variant is a discriminated union over `kind`. No torch.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

# In pydantic's (Rust) patterns `$` is the very end: a trailing newline does not match.
Name = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z0-9][a-z0-9_.-]{0,31}$"),
    Field(description="1 to 32 of a-z 0-9 . _ -, starting with a letter or digit"),
]
Positive = Annotated[int, Field(ge=1)]
Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
"""Of a running average; at 1 it would never move."""
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Section(BaseModel):
    """Base of every group: immutable, closed, no coercion, finite numbers only."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Run(Section):
    """What this run is called and where it lands."""

    name: Annotated[
        str,
        StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"),
        Field(description="auto, or 1 to 64 of letters, digits, . _ -, not starting with . _ -"),
    ]  # "auto": the time of the start
    root: str  # run folders are made below it


class Partition(Section):
    """What comes with one partition of a queue."""

    cores_per_gpu: Positive
    whole_nodes: bool  # nothing less than a node
    own_memory: bool  # memory comes with the GPUs; asking for all of the node's is refused
    max_hours: Annotated[float, Field(gt=0)]


class Slurm(Section):
    """What a queue needs to know; ids stay strings."""

    kind: Literal["slurm"]
    partition: str
    account: str
    time: Annotated[
        str,
        StringConstraints(pattern=r"^([0-9]+-)?[0-9]{1,3}:[0-5][0-9]:[0-5][0-9]$"),
        Field(description="[days-]hours:minutes:seconds, in quotes"),
    ]
    memory: str  # "0": all of the node's; "": it comes with the GPUs
    gpus_per_node: Positive
    node_gpus: Positive  # GPUs of a whole node
    cpu_bind: Literal["none", "cores", "threads", "sockets"]  # where no masks apply
    distribution: str
    exclusive: bool
    signal_s: Positive  # the job is told to stop this long before its limit
    partitions: dict[str, Partition]
    setup: Annotated[tuple[str, ...], Field(strict=False)]  # lines of shell before srun
    python: str  # interpreter, with its container prefix if any


class InPlace(Section):
    """No queue: runs where it is started."""

    kind: Literal["none"]


class Site(Section):
    """Facts of one machine."""

    name: Name
    device: Literal["cpu", "cuda", "rocm"]
    num_nodes: Positive
    ranks: Positive  # what parallel.ranks is unless it is given
    ranks_per_node: Positive
    cores_per_rank: Positive
    node_cores: Positive  # that a job may use
    reserved_cores: Annotated[tuple[int, ...], Field(strict=False)]  # the operating system's
    cpu_masks: Annotated[
        tuple[str, ...], Field(strict=False)
    ]  # one hex mask a local rank; full nodes
    interface: str  # network interface prefix for collectives, "" to let the library find it
    queue: Annotated[Slurm | InPlace, Field(discriminator="kind")]


class CustomModel(Section):
    """A Qwen3 whose sizes are all given here."""

    kind: Literal["custom"]
    name: Name
    dim: Positive
    num_layers: Positive
    num_heads: Positive
    num_kv_heads: Positive
    head_dim: Positive
    hidden_dim: Positive
    seq_len: Positive
    tie_embeddings: bool
    vocab_multiple: Positive
    dtype: Literal["fp32", "bf16"]  # compute; master weights are fp32 always


class ShippedModel(Section):
    """One of torchtitan's Qwen3 flavours, with our vocabulary."""

    kind: Literal["shipped"]
    name: Name
    flavor: Literal["0.6B", "1.7B", "4B", "8B", "14B", "32B"]
    seq_len: Annotated[int, Field(ge=1, le=40960)]  # what Qwen3's rotary embedding was made for
    tie_embeddings: bool
    vocab_multiple: Positive
    dtype: Literal["fp32", "bf16"]


Model = Annotated[CustomModel | ShippedModel, Field(discriminator="kind")]


class Parallel(Section):
    """How the ranks of one replica share it."""

    kind: Literal["single", "fsdp"]
    ranks: Positive


class Outer(Section):
    """The outer optimiser."""

    optimizer: Literal["nesterov", "sgd"]
    lr: Annotated[float, Field(gt=0, le=1e9)]  # far inside fp32, in which the step is made
    momentum: Annotated[float, Field(ge=0, lt=1)]
    solo_full_step: bool  # a round with one contributor has lr 1


class Diloco(Section):
    """The outer loop."""

    replicas: Positive  # inside this allocation
    inner_steps: Positive  # H
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

    kind: Literal["inline"]
    limit_mb: Positive  # largest payload that may travel inside Flower messages
    timeout_s: Seconds  # of one request
    poll_s: Seconds  # how often a site asks for its next instruction
    retry_first_s: Seconds
    retry_max_s: Seconds


class BpeTokenizer(Section):
    """Byte-level BPE trained on the corpus itself."""

    kind: Literal["bpe"]
    vocab_size: Annotated[int, Field(ge=256, le=2**20)]


class FileTokenizer(Section):
    """A Hugging Face `tokenizer.json` that is here already."""

    kind: Literal["file"]
    path: str


class Data(Section):
    """A corpus of text."""

    name: Name
    kind: Literal["pydocs", "text", "jsonl"]
    files: Annotated[
        tuple[str, ...], Field(strict=False)
    ]  # globs, below one of `roots`; [] for pydocs
    roots: Annotated[tuple[str, ...], Field(strict=False)]
    cache: str  # tokenised corpora are kept below it
    tokenizer: Annotated[BpeTokenizer | FileTokenizer, Field(discriminator="kind")]
    held_out: Annotated[float, Field(gt=0, lt=0.5)]  # share of the windows kept for evaluation
    max_windows: Annotated[int, Field(ge=0)]  # 0: all


class Optim(Section):
    """The inner optimiser and its batch."""

    name: Literal["adamw"]
    lr: Rate
    beta1: Decay
    beta2: Decay
    weight_decay: Annotated[float, Field(ge=0)]
    batch_windows: Positive  # windows a step of the whole replica
    warmup: Fraction  # share of the corpus over which the LR rises
    decay: Literal["cosine", "constant"]
    min_lr: Fraction  # of lr, at the end of the corpus
    clip_norm: Rate


class ExactCodec(Section):
    """A delta becomes bytes that hold all of it."""

    kind: Literal["fp32"]

    @property
    def feedback(self) -> bool:
        """Nothing is lost, so nothing is fed back."""
        return False

    @property
    def name(self) -> str:
        """What payloads are marked with."""
        return self.kind


class LossyCodec(Section):
    """A delta becomes fewer bytes, which hold nearly all of it."""

    kind: Literal["bf16", "fp16", "int8", "int4"]
    feedback: bool  # what encoding loses is kept and goes out with the next delta

    @property
    def name(self) -> str:
        """What payloads are marked with."""
        return self.kind


class CoarseCodec(Section):
    """Two bits of every value, or one: made up for by feedback only."""

    kind: Literal["int2", "sign"]
    feedback: bool
    force: bool  # do without feedback all the same

    @property
    def name(self) -> str:
        """What payloads are marked with."""
        return self.kind


Keep = Annotated[int, Field(ge=1, le=4096)]
"""Values of 4096 that are sent."""


class TopKCodec(Section):
    """The largest values of every 4096."""

    kind: Literal["topk"]
    keep: Keep
    value_bits: Literal[2, 4, 8, 16]
    feedback: bool
    force: bool  # 2 bits without feedback all the same

    @property
    def name(self) -> str:
        """What payloads are marked with."""
        return f"{self.kind}-{self.keep}-b{self.value_bits}"


class RandomKCodec(Section):
    """Values drawn from every 4096."""

    kind: Literal["randomk"]
    keep: Keep
    feedback: bool  # then they are not scaled up: feedback wants what is shorter than the delta

    @property
    def name(self) -> str:
        """What payloads are marked with."""
        return f"{self.kind}-{self.keep}" + ("-raw" if self.feedback else "")


class DctCodec(Section):
    """The largest cosine coefficients of every 4096 values."""

    kind: Literal["dct"]
    keep: Keep
    feedback: bool

    @property
    def name(self) -> str:
        """What payloads are marked with."""
        return f"{self.kind}-{self.keep}"


Codec = Annotated[
    ExactCodec | LossyCodec | CoarseCodec | TopKCodec | RandomKCodec | DctCodec,
    Field(discriminator="kind"),
]
"""How a delta becomes bytes."""


class Evaluation(Section):
    """Held-out evaluation at theta_outer."""

    max_windows: Positive
    every_rounds: Positive


class Wandb(Section):
    """Where the metrics go besides metrics.jsonl."""

    mode: Literal["offline", "online", "disabled"]
    project: Annotated[
        str,
        StringConstraints(pattern=r"^[^/\\\\#?%:]{1,128}$"),
        Field(description="1 to 128 characters without / \\ # ? % :"),
    ]


class Metrics(Section):
    """What is written down."""

    every_steps: Positive
    wandb: Wandb


class Security(Section):
    """What the central knows its sites by."""

    keys: str  # folder that `pww.central init` made; "none": no credentials, loopback only


Role = Literal["coordinator", "aggregator"]
"""A service of the central that may run in a process of its own."""


class Central(Section):
    """Where the central is and how to prove who asks (`url`, `bundle`), or where it listens."""

    url: str  # "none": train alone, the outer step in this process
    bundle: str  # folder with this site's keys and the central's CA; "none" on loopback
    security: Security
    roles: Annotated[tuple[Role, ...], Field(strict=False)]  # what this process serves
    host: str
    port: Port
    aggregator_port: Port
    keep_deltas: bool  # merged payloads stay on disk, for a replay without some of them
    manifest: str  # "none": of the corpus that `data` names
    linger_s: Annotated[float, Field(ge=0, le=1e9)]  # for sites that were silent at the end
    patience_s: Seconds  # a site that was asked for theta(0) is waited for this long


class Checkpoint(Section):
    """The run's own folder."""

    keep: Annotated[int, Field(ge=2)]  # complete checkpoints that stay on disk


class Config(Section):
    """One run, complete: what every process of it reads."""

    replica: Name  # id within the site; the full id is site/replica
    seed: Annotated[int, Field(ge=0, lt=2**31)]
    resume: str  # "none", "auto", or the run folder to go on with
    dry: bool
    run: Run
    site: Site
    model: Model
    parallel: Parallel
    diloco: Diloco
    darl: Darl
    transport: Transport
    data: Data
    optim: Optim
    codec: Codec
    evaluation: Evaluation
    metrics: Metrics
    checkpoint: Checkpoint
    central: Central

    @property
    def replica_id(self) -> str:
        """`site/replica`: the stream's name across requeues."""
        return f"{self.site.name}/{self.replica}"
