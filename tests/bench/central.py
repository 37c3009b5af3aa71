"""Figures of the central: `python tests/bench/central.py [figure ...] [ram=DIR] [disk=DIR]`.

One JSON line each. `ram` is a RAM disk (default /dev/shm), `disk` a real one (default: where
temporary files go). With fsync off nothing is measured. A figure's `undisturbed` sibling divides
the CPU time by two cores instead of taking the clock's: on a machine that does other things too it
says what the merge alone would take.
"""

import json
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, sleep

import httpx
import torch
from central_merge import measure, sequential_write_s, shapes_of
from central_rounds import round_ms
from figures import figure, machine

from pww.central import credentials
from pww.central.aggregator import Aggregator
from pww.central.coordinator import Coordinator
from pww.central.ledger import Ledger
from pww.clock import SystemClock
from pww.config.load import compose
from pww.lease.space import BlockSpace
from pww.transport.bundle import Bundle
from pww.transport.payload import write_theta
from pww.wire import Seed, SpaceInfo, model_digest

ROOT = Path(__file__).resolve().parents[2]


def merge_gb_per_s(ram: Path, disk: Path) -> None:
    """Throughput, memory; a quarter of the model's layers do."""
    for sites in (4, 2):
        told = measure(ram, num_layers=7, tied=True, sites=sites, codec="fp32")
        gb = told["decoded_bytes"] / 1e9
        name = "merge_gb_per_s" if sites == 4 else f"merge_{sites}_sites_gb_per_s"
        unit = f"GB/s of fp32 deltas from {sites} sites, RAM disk"
        figure(name, gb / told["seconds"], unit, ">= 1.5")
        figure(f"{name}_undisturbed", 2 * gb / told["cpu_s"], unit, ">= 1.5")
        if sites == 4:
            what = "of the merge's time; the same bytes read and written by two threads, no more"
            figure("merge_vs_plain_io", told["plain_s"] / told["seconds"], what, "")
    tensors = max(0.0, told["peak_bytes"] - 100e6) / told["largest_bytes"]
    figure("merge_peak_tensors", tensors, "largest tensors above 100 MB", "<= 3")
    figure("merge_peak_mb", told["peak_bytes"] / 1e6, "MB above the start", "<= 100 + 3 tensors")


def merge_large(ram: Path, disk: Path) -> None:
    """Two sites, 0.7 B parameters (28 layers and an output that is not tied)."""
    free = shutil.disk_usage(ram).free
    memory = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    codec = "fp32" if min(free, memory) > 21e9 else "bf16"
    told = measure(ram, num_layers=25, tied=False, sites=2, codec=codec)
    millions = told["written_bytes"] / 8e6
    unit = f"s for 2 {codec} deltas of {millions:.0f} M values, RAM disk"
    figure("merge_0.7b_s", told["seconds"], unit, "< 5")
    figure("merge_0.7b_s_undisturbed", told["cpu_s"] / 2, unit, "< 5")


def merge_disk_ratio(ram: Path, disk: Path) -> None:
    """Against a plain write of the same bytes to the same disk, before and after."""
    before = sequential_write_s(disk, int(8 * 171e6))
    told = measure(disk, num_layers=1, tied=True, sites=2, codec="bf16")
    after = sequential_write_s(disk, int(told["written_bytes"]))
    ratio = min(before, after) / told["seconds"]
    figure("merge_disk_ratio", ratio, f"of a plain fsynced write ({disk})", ">= 0.8")


def restart_s(ram: Path, disk: Path) -> None:
    """From the start of the process until /health answers and theta was verified, at 0.6 B.

    With TLS and credentials: `_serve` ends the bench if the port answers without.
    """
    folder = Path(tempfile.mkdtemp(prefix="pww-bench-", dir=ram))
    credentials.init(
        folder / "keys", hosts=["localhost"], replicas=["bench/a"], port=29710, clock=SystemClock()
    )
    tls = Bundle.read(folder / "keys/bundles/bench", replica="bench/a", clock=SystemClock()).tls
    command = [
        sys.executable, "-m", "pww.central", "data=pydocs", f"run.root={folder}", "run.name=r",
        "metrics.wandb.mode=disabled", "central.port=29710", "central.aggregator_port=29711",
        "central.blob_port=29711", f"central.security.keys={folder}/keys",
    ]  # fmt: skip
    try:
        _serve(command, tls)  # makes the ledger, and the corpus if it is not there
        _fill(folder / "r")
        took = _serve(command, tls)
        print(json.dumps({"tls": True, "credentials": True, "fsync": "on"}), flush=True)
        figure("restart_s", took, "s from the start of the process to /health, 0.6 B", "< 5")
        begin = perf_counter()
        ledger, merger = _open(folder / "r")
        merger.invitation("bench/a", "phase")
        took = perf_counter() - begin
        ledger.close()
        figure("restart_verified_s", took, "s until theta and momentum were verified, RAM disk", "")
    finally:
        shutil.rmtree(folder)


def _serve(command: list[str], tls: ssl.SSLContext) -> float:
    """Seconds until the central answers; it is stopped then."""
    url = "https://localhost:29710"
    begin = perf_counter()
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while True:
            assert process.poll() is None, f"{' '.join(command)} ended with {process.returncode}"
            try:
                if httpx.get(f"{url}/health", verify=tls, timeout=1.0).status_code == 200:
                    break
            except httpx.TransportError:
                sleep(0.02)
        took_s = perf_counter() - begin
        status = httpx.get(f"{url}/status", verify=tls, timeout=10.0).status_code
        if status != 401:
            sys.exit(f"/status answers {status} without a credential: no figures")
        return took_s
    finally:
        process.terminate()
        process.wait(60)


def _open(run: Path) -> tuple[Ledger, Aggregator]:
    clock, config = SystemClock(), compose([])
    ledger = Ledger(run / "central" / "ledger.sqlite")
    info = SpaceInfo.model_validate_json(str(ledger.rows("SELECT space FROM run")[0][0]))
    books = Coordinator(
        ledger, BlockSpace.from_info(info), darl=config.darl, aggregator_port=1, clock=clock
    )
    merger = Aggregator(books, folder=run / "central", diloco=config.diloco, clock=clock)
    return ledger, merger


def _fill(run: Path) -> None:
    """A theta(0) of 0.6 B."""
    shapes = shapes_of(28, tied=True)
    ledger, merger = _open(run)
    path = run / "theta0"
    tensors = ((name, torch.ones(shape)) for name, shape in shapes.items())
    seed = Seed(
        run=merger.books.run, replica="bench/a", incarnation="a" * 32, model=model_digest(shapes),
        payload=write_theta(path, tensors, shapes),
    )  # fmt: skip
    merger.accept_seed(seed, path)
    ledger.close()
    path.unlink()


def round_cost(ram: Path, disk: Path) -> None:
    """The same round after 10 rounds and after 10^5."""
    for name, history in (("round_ms_at_10", 10), ("round_ms_at_1e5", 100_000)):
        took, used, on = round_ms(disk, history)
        print(json.dumps({"after rounds": history, **on}), flush=True)
        if not on["fsync"]:
            sys.exit("measured without fsync this would mean nothing: no figures")
        figure(name, took, f"ms, median of a tiny model's rounds ({disk})", "flat")
        figure(f"{name}_cpu", used, "ms of CPU, their median", "flat")


FIGURES: dict[str, Callable[[Path, Path], None]] = {
    "merge_gb_per_s": merge_gb_per_s,
    "merge_0.7b_s": merge_large,
    "merge_disk_ratio": merge_disk_ratio,
    "restart_s": restart_s,
    "round_ms": round_cost,
}


def main(words: list[str]) -> None:
    """Measures what was named, or everything."""
    options = dict(word.split("=", 1) for word in words if "=" in word)
    names = [word for word in words if "=" not in word] or list(FIGURES)
    ram = Path(options.get("ram", "/dev/shm"))
    disk = Path(options.get("disk", tempfile.gettempdir()))
    if os.fsync.__module__ != "posix":
        sys.exit("fsync was replaced: no figures")
    load = os.getloadavg()[0]
    print(json.dumps({"machine": machine(), "load": load, "fsync": "on"}), flush=True)
    for name in names:
        FIGURES[name](ram, disk)


if __name__ == "__main__":
    main(sys.argv[1:])
