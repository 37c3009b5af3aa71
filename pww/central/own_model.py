"""A `model=hf/...` for its export: its configuration, once its tensors are those of theta."""

import json
from collections.abc import Mapping

import torch

from pww.central.architecture import OwnModel
from pww.config.schema import HfModel
from pww.errors import ConfigError, StateError
from pww.trainer.hf_config import transformers_config

PREFIX = "model."
"""The trainer holds the model under this name."""


def own_model(
    model: HfModel, shapes: Mapping[str, tuple[int, ...]], *, padded_vocab: int
) -> OwnModel:
    """What is exported of a model of transformers whose theta has tensors of these shapes.

    Raises:
        StateError: transformers is not here, or this version of it makes another model.
    """
    try:
        config = transformers_config(model, padded_vocab=padded_vocab)
    except ConfigError as why:
        raise StateError(f"model={model.name} cannot be exported: {why}") from why
    from transformers import AutoModelForCausalLM, __version__

    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call,unused-ignore]
    theirs = {f"{PREFIX}{name}": tuple(one.shape) for name, one in built.named_parameters()}
    if odd := sorted(theirs.items() ^ dict(shapes).items()):
        name, shape = odd[0]
        raise StateError(
            f"model={model.name} cannot be exported: transformers {__version__} makes another "
            f"model of model.config={model.config} than the run trained (tensor {name} of {shape} "
            "is in one of the two only); use the version that it was trained with"
        )
    told = json.loads(config.to_json_string())
    return OwnModel({**told, "architectures": [type(built).__name__]}, PREFIX)
