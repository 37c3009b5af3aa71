"""The running statistics in an inner state on disk, read by one process without a trainer."""

import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint.state_dict_loader as loader
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from pww.errors import CheckpointError
from pww.trainer.inner_state import reason
from pww.trainer.vision_state import BUFFER


def read_statistics(inner: Path) -> dict[str, torch.Tensor]:
    """The buffers by their names in the model, whoever wrote them on however many ranks.

    Raises:
        CheckpointError: there are none, or they cannot be read.
    """
    try:
        stored = FileSystemReader(inner).read_metadata().state_dict_metadata
        state = {
            name: torch.empty(what.size, dtype=what.properties.dtype)
            for name, what in stored.items()
            if name.startswith(BUFFER) and isinstance(what, TensorStorageMetadata)
        }
        if state:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "torch.distributed is disabled")
                loader.load(state, checkpoint_id=inner, no_dist=True)
    except Exception as why:  # torch unpickles: what is damaged may raise anything
        told = reason(why) if isinstance(why, CheckpointException) else str(why)
        raise CheckpointError(
            f"the running statistics in {inner} cannot be read ({told}): they are written with the "
            "next phase again"
        ) from why
    if not state:
        raise CheckpointError(
            f"{inner} holds no running statistics: it was not written by a ResNet of this version"
        )
    return {name.removeprefix(BUFFER): tensor for name, tensor in state.items()}
