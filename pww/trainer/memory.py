"""The most memory that a rank had in use: of its device, or of its process where that is a CPU."""

import resource

import torch


def forget_peak(device: torch.device) -> None:
    """The next `peak` counts from here; a process' own peak is that of its life."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak(device: torch.device) -> int:
    """Bytes: allocated by tensors of a GPU, or resident of a process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def no_room(fault: torch.OutOfMemoryError) -> str:
    """What a device says when it is full, in one sentence; the allocator's advice is left out."""
    told = str(fault).partition("\n")[0].split(". ")
    return "the device is out of memory (" + ". ".join(told[:2]).rstrip(". ") + ")"
