"""How a bench tells what it measured: one JSON line a figure, with its goal beside it."""

import json
import os
import tempfile
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


def warm_memory(folder: Path, num_bytes: int) -> None:
    """Sees to it that the pages of the next files below `folder`, so many bytes, are memory.

    A virtual machine may give back to its host what it does not use (free page reporting), and such
    a page costs ten times the copy into it when it is used again, which is nothing that a bench
    should measure. So a file of twice the size is written there and removed.
    """
    rows = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(row.split()[1]) * 1024 for row in rows if row.startswith("MemAvailable"))
    page = os.urandom(1 << 20)
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        for _ in range(0, min(2 * num_bytes, free - (1 << 30)), len(page)):
            file.write(page)
