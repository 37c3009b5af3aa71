"""Facts of one machine and of its queue."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from pww.config.schema.base import Name, Positive, Rate, Section

DeviceKind = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,31}$"),
    Field(description="1 to 32 of letters, digits, . _ -, starting with a letter or digit"),
]
"""What one rank computes on, as people call it: its speed is compared with its own kind only."""


class Partition(Section):
    """What comes with one partition of a queue."""

    cores_per_gpu: Positive
    whole_nodes: bool  # nothing less than a node
    own_memory: bool  # memory comes with the GPUs; asking for all of the node's is refused
    max_hours: Annotated[float, Field(gt=0)]
    short_hours: Annotated[float, Field(ge=0)]  # jobs of at most this start much sooner; 0: none do
    device_kind: DeviceKind
    peak_tflops: Rate
    # as in Site; older runs have no such keys
    allreduce_node_gb_s: Literal["none"] | Rate = "none"
    allreduce_nodes_gb_s: Literal["none"] | Rate = "none"


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
    gpus_per_node: Annotated[int, Field(ge=0)]  # 0: none, which a run refuses
    node_gpus: Positive  # GPUs of a whole node
    cpu_bind: Literal["none", "cores", "threads", "sockets"]  # where no masks apply
    distribution: str
    exclusive: bool
    signal_s: Positive  # the job is told to stop this long before its limit
    partitions: dict[str, Partition]  # {}: nothing is known of them, any may be named
    setup: Annotated[tuple[str, ...], Field(strict=False)]  # lines of shell before srun
    python: str  # interpreter, with its container prefix if any


class InPlace(Section):
    """No queue: runs where it is started."""

    kind: Literal["none"]


class Site(Section):
    """Facts of one machine."""

    name: Name
    device: Literal["cpu", "cuda", "rocm"]
    device_kind: DeviceKind
    peak_tflops: Literal["none"] | Rate  # of one rank's device, dense bf16
    # what an all-reduce of 256 MiB was measured at, in a full node and over several; older runs
    # have no such keys
    allreduce_node_gb_s: Literal["none"] | Rate = "none"
    allreduce_nodes_gb_s: Literal["none"] | Rate = "none"
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
    outbound: Literal["first", "all"] = "first"  # ranks that send to the central; older runs: none
    scratch: Annotated[
        str,
        StringConstraints(pattern=r"^(none|/.*)$"),
        Field(description="none, or an absolute folder"),
    ]
    queue: Annotated[Slurm | InPlace, Field(discriminator="kind")]
