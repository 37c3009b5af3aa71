"""Makes torchtitan 0.3.0 importable, quiet and a CPU library: the only place that bends it.

torchtitan knows accelerators only. Four seams, none of which edits a file or patches torch:

* device: `torchtitan.tools.utils` binds the device once at import and everybody takes it from
there, so replacing its two names before any other torchtitan import is enough;
* triton: one MoE backend that we never use imports it whenever the Trainer is imported, and torch's
CPU wheels have none, so a module stands in for those kernels;
* datasets: its own readers of text, which we never use, import Hugging Face's datasets and with
them pandas and aiohttp: a quarter of all that a rank imports. Names stand in while it is imported;
* gloo: FSDP2 with a gradient divide factor of 1 reduces with PREMUL_SUM, which gloo lacks; FSDP2's
own switch asks for a plain sum.

Source: torchtitan 0.3.0; its issue #1661 asks for a CPU mode.
"""

import importlib.util
import logging
import resource
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

from pww.errors import TrainerError
from pww.trainer.device import Device, require

KERNELS = "torchtitan.distributed.minimal_async_ep.kernels"
READERS = ("datasets", "datasets.distributed")


def install(device: Device) -> None:
    """Sets torchtitan up for `device` and imports its Trainer. A process has one kind of device.

    Raises:
        TrainerError: no such accelerator here, or torchtitan was set up for another kind before.
    """
    kind = "cpu" if device == "cpu" else "cuda"
    if device != "cpu":
        require(device)
    with unwarned():
        from torchtitan.tools import utils

        if "torchtitan.trainer" not in sys.modules:
            _hush(Path(utils.__file__).parents[1])
            if importlib.util.find_spec("triton") is None:
                why = "of MinimalAsyncEP's kernels needs triton, which is not installed"
                sys.modules.setdefault(KERNELS, _StandIn(KERNELS, why))
            if kind == "cpu":
                utils.device_type = "cpu"
                utils.device_module = _CpuModule("pww_cpu_device")
            with _without_readers():
                import torchtitan.trainer  # noqa: F401
    if utils.device_type != kind:
        raise TrainerError(
            f"torchtitan drives {utils.device_type} in this process and cannot drive {device} too; "
            "start another process for it"
        )


@contextmanager
def unwarned() -> Iterator[None]:
    """Silences what torch 2.13 and torchtitan 0.3.0 say to each other, and nothing else.

    The second is about random numbers in DTensors, which we never draw (`titan_model.whole`).
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`torch.jit.script", category=DeprecationWarning)
        warnings.filterwarnings("ignore", message="DTensor .* may not have complete support on cpu")
        yield


def gloo_safe(parallelize: Callable[..., torch.nn.Module]) -> Callable[..., torch.nn.Module]:
    """A `ModelSpec.parallelize_fn` whose FSDP units reduce with a plain sum."""

    def wrapped(model: torch.nn.Module, **given: Any) -> torch.nn.Module:
        model = parallelize(model, **given)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)
        return model

    return wrapped


class _CpuProperties:
    """What `get_device_properties` says of the machine's memory."""

    name = "cpu"

    @property
    def total_memory(self) -> int:
        """Bytes of memory that the machine has."""
        with open("/proc/meminfo", encoding="ascii") as lines:
            return int(lines.readline().split()[1]) * 1024


class _CpuModule(types.ModuleType):
    """`torch.cpu` plus the accelerator calls that torchtitan makes of its device module."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def current_device(self) -> int:
        """`torch.cpu.current_device()` is a string; torchtitan wants an index."""
        return 0

    def device_count(self) -> int:
        """One, so that every rank gets `cpu:0`."""
        return 1

    def set_device(self, device: object) -> None:
        """There is nothing to choose."""

    def synchronize(self, device: object = None) -> None:
        """There is nothing to wait for."""

    def get_device_name(self, device: object = None) -> str:
        """The name under which torchtitan looks for a peak rate."""
        return "cpu"

    def get_device_properties(self, device: object = None) -> _CpuProperties:
        """The machine's memory."""
        return _CpuProperties()

    def empty_cache(self) -> None:
        """There is no cache."""

    def reset_peak_memory_stats(self, device: object = None) -> None:
        """The kernel keeps the peak."""

    def memory_stats(self, device: object = None) -> dict[str, int]:
        """The process's peak resident memory under the names of CUDA's allocator."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {
            "active_bytes.all.peak": peak,
            "reserved_bytes.all.peak": peak,
            "num_alloc_retries": 0,
            "num_ooms": 0,
        }


class _StandIn(types.ModuleType):
    """Stands in for a module: any name can be imported, none can be called."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)
        self._why = why

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        what = f"{name} {self._why}"

        def missing(*args: object, **given: object) -> Any:
            raise RuntimeError(what)

        return type(name, (), {"__new__": missing})  # a type: names stand in annotations too


@contextmanager
def _without_readers() -> Iterator[None]:
    """What is imported in the block gets stand-ins for `READERS`; whoever comes later, the real."""
    mine = [name for name in READERS if name not in sys.modules]
    why = "of datasets is not used here: pww reads tokenised windows"
    sys.modules.update({name: _StandIn(name, why) for name in mine})
    try:
        yield
    finally:
        for name in mine:
            del sys.modules[name]


class _Hush(logging.Filter):
    """Drops what torchtitan says below WARNING, and its guess of a peak rate (our YAML has it)."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = f"{folder}/"

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line may pass."""
        if not record.pathname.startswith(self._folder):
            return True
        return record.levelno >= logging.WARNING and record.funcName != "get_peak_flops"


def _hush(folder: Path) -> None:
    """torchtitan speaks on the root logger itself; a filter there meets those lines only."""
    logging.getLogger().addFilter(_Hush(folder))
