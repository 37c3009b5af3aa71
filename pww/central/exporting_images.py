"""theta_outer of a ResNet and its running statistics as one file, under torchvision's names.

    model.safetensors    a `state_dict`: parameters, running means and variances, counters; its
                         metadata say which theta, and how images are normalised before

A network with a CIFAR stem loads it strictly: `model.load_state_dict(load_file(path))`.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from pww.central.generations import Generation
from pww.central.huggingface import MODEL, told_faults
from pww.errors import StateError
from pww.transport.tensorfile import TensorReader, TensorWriter

MEAN = ".running_mean"


def export_resnet(
    generation: Generation,
    folder: Path,
    *,
    name: str,
    statistics: Mapping[str, torch.Tensor],
    mean: Sequence[float],
    std: Sequence[float],
) -> Path:
    """Writes `folder/model.safetensors`, whole or not at all; returns the folder. Safe to repeat.

    Args:
        name: of the model.
        statistics: every buffer of the model that goes with this theta.
        mean: of the channels of what is trained on, on a scale of 0 to 1; `std` likewise.

    Raises:
        StateError: theta and the statistics are not of one model, or damaged, or the disk refused.
    """
    theta = generation.theta
    told = {
        "format": "pt", "model": name, "round": str(generation.info.round),
        "state_hash": generation.info.state_hash,
        "mean": json.dumps(list(mean)), "std": json.dumps(list(std)),
    }  # fmt: skip
    with told_faults(theta, folder), TensorReader(theta) as reader:
        shapes = {one: reader.shape(one) for one in reader.names}
        _require_of_one_model(shapes, statistics, theta)
        layout = {one: (torch.float32, shape) for one, shape in shapes.items()}
        layout |= {one: (b.dtype, tuple(b.shape)) for one, b in statistics.items()}
        folder.mkdir(parents=True, exist_ok=True)
        with TensorWriter(folder / MODEL, layout, told, hashed=False) as writer:
            for one in shapes:
                writer.add(one, reader.get(one))
            for one, buffer in statistics.items():
                writer.add(one, buffer)
    return folder


def _require_of_one_model(
    shapes: Mapping[str, Sequence[int]], statistics: Mapping[str, torch.Tensor], theta: Path
) -> None:
    """Each norm has a scale in theta and a mean among the statistics, of the same length."""
    for one, buffer in statistics.items():
        scale = one.removesuffix(MEAN) + ".weight"
        if one.endswith(MEAN) and shapes.get(scale) != tuple(buffer.shape):
            raise StateError(
                f"{theta} cannot be exported: the checkpoint has {one} of {len(buffer)}, and theta "
                f"no {scale} of that length: they are of two models"
            )
