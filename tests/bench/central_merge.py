"""One merge on a disk, measured in a process of its own: seconds, CPU, peak memory.

The model has the shapes of Qwen3-0.6B, embedding and output not tied where more parameters are
wanted. Every payload is inspected first, as on receipt; what is timed is the closing of a round:
decode, weighted mean, outer step, both files of the new generation hashed and fsynced.
"""

import json
import math
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter

import torch
from figures import warm_memory

from pww.central.generations import Generations, name_of
from pww.central.merge import merge_finite
from pww.central.screening import StagedPayload, screen
from pww.codec import codec_named
from pww.config.load import compose
from pww.transport.memory import aligned_buffer
from pww.transport.payload import write_payload

BLOCK = {
    "q": (2048, 1024), "k": (1024, 1024), "v": (1024, 1024), "o": (1024, 2048),
    "gate": (3072, 1024), "up": (3072, 1024), "down": (1024, 3072), "norm1": (1024,),
    "norm2": (1024,),
}  # fmt: skip
VOCAB = 151_936


def shapes_of(num_layers: int, *, tied: bool) -> dict[str, tuple[int, ...]]:
    """A Qwen3 of width 1024; 28 layers, tied, are the 0.6 B of its name."""
    shapes: dict[str, tuple[int, ...]] = {"embed": (VOCAB, 1024)}
    for i in range(num_layers):
        shapes |= {f"layers.{i}.{name}": shape for name, shape in BLOCK.items()}
    return shapes if tied else shapes | {"output": (VOCAB, 1024)}


def num_values(shapes: dict[str, tuple[int, ...]]) -> int:
    return sum(math.prod(shape) for shape in shapes.values())


def _rss_bytes(key: str) -> int:
    rows = Path("/proc/self/status").read_text().splitlines()
    return next(int(row.split()[1]) * 1024 for row in rows if row.startswith(key))


def _once(folder: Path, num_layers: int, tied: bool, sites: int, codec: str) -> dict[str, float]:
    """The merge, in this process, which does nothing else afterwards."""
    shapes = shapes_of(num_layers, tied=tied)
    noise = torch.randn(max(math.prod(shape) for shape in shapes.values()))
    generations = Generations(folder / "generations")
    with generations.draft(0, shapes) as draft:
        for name, shape in shapes.items():
            theta = noise[: math.prod(shape)].view(shape)
            draft.add(name, theta=theta, momentum=theta * 0.1)
    staged = []
    for site in range(sites):
        path = folder / f"{site:032x}"
        scaled = (
            (name, noise[: math.prod(shape)].mul(0.01 * (site + 1)).view(shape))
            for name, shape in shapes.items()
        )
        info = write_payload(path, scaled, shapes, codec_named(codec))
        staged.append(StagedPayload(path.name, "", f"s{site}/x", path, info, 100, 0, False))
    del noise, scaled
    with screen(staged, shapes, known={}) as screened:
        diloco = compose([]).diloco
        warm_memory(folder, 8 * num_values(shapes))
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again here
        start_bytes, used = _rss_bytes("VmRSS"), resource.getrusage(resource.RUSAGE_SELF)
        begin = perf_counter()
        result, _ = merge_finite(
            generations.open(name_of(0)), screened, number=1, generations=generations,
            diloco=diloco,
        )  # fmt: skip
        seconds = perf_counter() - begin
    peak_bytes, after = _rss_bytes("VmHWM"), resource.getrusage(resource.RUSAGE_SELF)
    assert result is not None
    assert len(result.merged) == sites
    base = generations.open(name_of(0))
    warm_memory(folder, 8 * num_values(shapes))
    plain_s = plain_io_s(
        [base.theta, base.momentum, *(one.path for one in staged)],
        [folder / "plain-0", folder / "plain-1"], base.theta.stat().st_size,
    )  # fmt: skip
    return {
        "plain_s": plain_s,
        "seconds": seconds,
        "cpu_s": after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime,
        "decoded_bytes": 4 * num_values(shapes) * sites,
        "written_bytes": 8 * num_values(shapes),
        "peak_bytes": peak_bytes - start_bytes,
        "largest_bytes": 4 * max(math.prod(shape) for shape in shapes.values()),
    }


def measure(disk: Path, *, num_layers: int, tied: bool, sites: int, codec: str) -> dict[str, float]:
    """One merge in a new process and folder on `disk`."""
    folder = Path(tempfile.mkdtemp(prefix="pww-bench-", dir=disk))
    words = [str(folder), str(num_layers), str(int(tied)), str(sites), codec]
    try:
        done = subprocess.run(
            [sys.executable, __file__, *words], check=True, capture_output=True, text=True
        )
        measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return measured
    finally:
        shutil.rmtree(folder)


def plain_io_s(sources: list[Path], targets: list[Path], target_bytes: int) -> float:
    """Seconds that two threads take to read `sources` and write `targets`, and nothing else."""

    def read(path: Path) -> None:
        with path.open("rb", buffering=0) as file:
            while file.readinto(own.buffer):
                pass

    def write(path: Path) -> None:
        with path.open("wb", buffering=0) as file:
            for start in range(0, target_bytes, len(own.buffer)):
                file.write(memoryview(own.buffer)[: target_bytes - start])
            os.fsync(file.fileno())

    def start() -> None:
        own.buffer = aligned_buffer(2 << 20)

    own = threading.local()
    begin = perf_counter()
    with ThreadPoolExecutor(2, initializer=start) as pool:
        jobs = [pool.submit(write, path) for path in targets]
        jobs += [pool.submit(read, path) for path in sources]
    for job in jobs:
        job.result()
    took = perf_counter() - begin
    for path in targets:
        path.unlink()
    return took


def sequential_write_s(disk: Path, num_bytes: int) -> float:
    """Seconds that a plain sequential write of so many bytes takes, fsync included."""
    data = os.urandom(1 << 20) * 4
    warm_memory(disk, num_bytes)
    with tempfile.NamedTemporaryFile(dir=disk) as file:
        begin = perf_counter()
        for _ in range(0, num_bytes, len(data)):
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
        return perf_counter() - begin


if __name__ == "__main__":
    target, layers, tied_, sites_, codec_ = sys.argv[1:]
    print(json.dumps(_once(Path(target), int(layers), tied_ == "1", int(sites_), codec_)))
