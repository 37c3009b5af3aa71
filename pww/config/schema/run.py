"""One run, complete."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from pww.config.schema.base import Name, Positive, Section
from pww.config.schema.central import Central
from pww.config.schema.codec import Codec
from pww.config.schema.data import Data, DataKind, Images
from pww.config.schema.model import InnerOptim, Model, Parallel
from pww.config.schema.outer import Darl, Diloco, Transport
from pww.config.schema.site import Site
from pww.errors import ConfigError


class Run(Section):
    """What this run is called and where it lands."""

    name: Annotated[
        str,
        StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"),
        Field(description="auto, or 1 to 64 of letters, digits, . _ -, not starting with . _ -"),
    ]  # "auto": the time of the start
    root: str  # run folders are made below it


class EvaluationSet(Section):
    """Another corpus that the model is evaluated on; what is not here is as in `data`."""

    name: Annotated[
        str,
        StringConstraints(pattern=r"^[a-z0-9][a-z0-9_]{0,31}$"),
        Field(description="1 to 32 of a-z 0-9 _, starting with a letter or digit"),
    ]  # ends up in the names of columns
    kind: DataKind
    files: Annotated[tuple[str, ...], Field(strict=False)]


class Evaluation(Section):
    """Held-out evaluation at theta_outer."""

    max_windows: Positive
    every_rounds: Positive
    sets: Annotated[tuple[EvaluationSet, ...], Field(strict=False, max_length=16)]


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


class Checkpoint(Section):
    """The run's own folder."""

    keep: Annotated[int, Field(ge=2)]  # complete checkpoints that stay on disk


class Launcher(Section):
    """What becomes of a job at a site with a queue."""

    wait: bool
    requeues: Annotated[int, Field(ge=0, le=1000)]


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
    data: Annotated[Data | Images, Field(discriminator="kind")]
    optim: InnerOptim
    codec: Codec
    evaluation: Evaluation
    metrics: Metrics
    checkpoint: Checkpoint
    launcher: Launcher
    central: Central

    @property
    def text(self) -> Data:
        """The corpus of text.

        Raises:
            ConfigError: the data are images.
        """
        if isinstance(self.data, Images):
            raise ConfigError(
                [
                    f"data={self.data.name}: are images, which only pww.train reads; there is "
                    "nothing to tokenise, and no central for them"
                ]
            )
        return self.data

    @property
    def replica_id(self) -> str:
        """`site/replica`: the stream's name across requeues."""
        return f"{self.site.name}/{self.replica}"
