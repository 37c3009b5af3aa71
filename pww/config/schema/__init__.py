"""The frozen, strict shape of a configuration; every value's home is `conf/`, so no defaults here.

Hydra's structured configs drop unknown `+keys` silently and know no `Literal`; pydantic refuses
both. One class per config group; a variant is a discriminated union over `kind`. No torch.
"""

from pww.config.schema.base import Decay, Fraction, Name, Port, Positive, Rate, Seconds, Section
from pww.config.schema.central import Central, Role, Security
from pww.config.schema.codec import (
    CoarseCodec,
    Codec,
    DctCodec,
    ExactCodec,
    Keep,
    LossyCodec,
    RandomKCodec,
    TopKCodec,
)
from pww.config.schema.data import BpeTokenizer, Data, FileTokenizer, Images
from pww.config.schema.model import (
    AdamW,
    CustomModel,
    HfModel,
    ImageModel,
    InnerOptim,
    LanguageModel,
    Model,
    Muon,
    Optim,
    Parallel,
    Sgd,
    ShippedModel,
)
from pww.config.schema.outer import Darl, Diloco, Outer, Transport
from pww.config.schema.run import (
    Checkpoint,
    Config,
    Evaluation,
    EvaluationSet,
    Launcher,
    Metrics,
    Run,
    Wandb,
)
from pww.config.schema.site import InPlace, Partition, Site, Slurm

__all__ = [
    "AdamW",
    "BpeTokenizer",
    "Central",
    "Checkpoint",
    "CoarseCodec",
    "Codec",
    "Config",
    "CustomModel",
    "Darl",
    "Data",
    "DctCodec",
    "Decay",
    "Diloco",
    "Evaluation",
    "EvaluationSet",
    "ExactCodec",
    "FileTokenizer",
    "Fraction",
    "HfModel",
    "ImageModel",
    "Images",
    "InPlace",
    "InnerOptim",
    "Keep",
    "LanguageModel",
    "Launcher",
    "LossyCodec",
    "Metrics",
    "Model",
    "Muon",
    "Name",
    "Optim",
    "Outer",
    "Parallel",
    "Partition",
    "Port",
    "Positive",
    "RandomKCodec",
    "Rate",
    "Role",
    "Run",
    "Seconds",
    "Section",
    "Security",
    "Sgd",
    "ShippedModel",
    "Site",
    "Slurm",
    "TopKCodec",
    "Transport",
    "Wandb",
]
