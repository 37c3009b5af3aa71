"""The accelerator of a rank: there, of the kind that the site names, and its own."""

import os
from typing import Literal

import torch

from pww.errors import TrainerError

Device = Literal["cpu", "cuda", "rocm"]


def require(device: Device) -> None:
    """Returns if torch can use accelerators of this kind here.

    Raises:
        TrainerError: it cannot.
    """
    if not torch.cuda.is_available():
        raise TrainerError(
            f"site.device={device}, but torch {torch.__version__} sees no GPU: check the driver "
            "and that this torch was built for it, or set site.device=cpu"
        )
    built = "rocm" if torch.version.hip is not None else "cuda"
    if built != device:
        raise TrainerError(
            f"site.device={device}, but torch {torch.__version__} was built for {built}: set "
            f"site.device={built} or install the other torch"
        )


def take(device: Device) -> None:
    """Local rank j computes on accelerator j of its node from now on; nothing on a CPU.

    Without it every rank of a node would be on accelerator 0, and nothing would say so.

    Raises:
        TrainerError: there is none for this rank.
    """
    if device == "cpu":
        return
    require(device)
    local, seen = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if local >= seen:
        raise TrainerError(
            f"LOCAL_RANK={local}, but this process sees {seen} GPU(s): every rank of a node has to "
            "see all of them (no --gpus-per-task, no visibility variable set by hand), and a node "
            "has to have one for each rank (site.ranks_per_node)"
        )
    torch.cuda.set_device(local)
