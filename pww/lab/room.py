"""Whether the memory at hand holds a run, asked before anything large is made."""

import os
from collections.abc import Iterator
from pathlib import Path

from pww.config.schema.lab import LabConfig
from pww.errors import ConfigError

ONCE = 6
"""The module, theta, the outer momentum, what was merged, and the evaluation's two."""


def check_room(config: LabConfig, *, parameters: int, free: int | None = None) -> None:
    """Refuses a model of which M workers fit in no way.

    Counted is what a method keeps between two steps, and a step's gradients; activations are not,
    and so a run that passes may still be too large.

    Args:
        config: Of the run.
        parameters: Of one worker.
        free: Bytes; those of this machine if not given.

    Raises:
        ConfigError: they do not fit.
    """
    each, once = numbers(config)
    need = 4 * parameters * (config.workers * each + once)
    free = free_bytes() if free is None else free
    if need <= free:
        return
    assert config.model is not None
    raise ConfigError(
        [
            f"model={config.model.name}: {parameters:,} parameters, of each of which workers="
            f"{config.workers} keep {each} numbers and the run {once}, are {need / 1e9:,.1f} GB, "
            f"and {free / 1e9:,.1f} GB of memory are free; use a smaller model, or fewer workers"
        ]
    )


def numbers(config: LabConfig) -> tuple[int, int]:
    """Numbers of four bytes that are kept of each parameter: by every worker, and once."""
    optim, method = config.optim, config.method
    state = 2 if optim.name == "adamw" else int(optim.momentum > 0)
    each = 3 + config.codec.feedback  # values, gradients as they are made and as rows; residual
    match method.kind:
        case "diloco":  # deltas; thetas, momenta and what was sent; what went on its way
            return each + state + 1 + 3 * method.eager + (method.overlap_steps > 0), ONCE
        case "sync":
            return each, ONCE + state
        case "dgc" | "demo":  # their own momentum, and what dgc holds back
            return 4 + (method.kind == "dgc"), ONCE


def free_bytes(root: Path = Path("/")) -> int:
    """Memory that a process may still take: what the system has, within a job's limits."""
    try:
        lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:  # no Linux
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    table = dict(line.split(":", 1) for line in lines)
    available = int(table["MemAvailable"].split()[0]) * 1024
    return min([available, *_limits(root)])


def _limits(root: Path) -> Iterator[int]:
    """What the control groups around this process allow (version 2)."""
    try:
        own = (root / "proc/self/cgroup").read_text(encoding="ascii").rpartition("0::/")[2].strip()
    except OSError:
        return
    top = root / "sys/fs/cgroup"
    for folder in (top / own, *(top / own).parents):
        if not folder.is_relative_to(top):
            return
        try:
            yield int((folder / "memory.max").read_text(encoding="ascii"))
        except (OSError, ValueError):  # none here; or "max", which is none
            continue
