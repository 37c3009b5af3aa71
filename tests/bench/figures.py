"""How a bench tells what it measured: one JSON line a figure, with its goal beside it."""

import json
import os
from pathlib import Path


def figure(name: str, value: float, unit: str, goal: str) -> None:
    """Prints one figure, at once."""
    line = {"figure": name, "value": round(value, 4), "unit": unit, "goal": goal}
    print(json.dumps(line), flush=True)


def machine() -> str:
    """The machine in words: figures mean nothing without it."""
    models = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return f"{len(os.sched_getaffinity(0))} of {len(models)} x {models[0]}, {memory_gb:.0f} GB"
