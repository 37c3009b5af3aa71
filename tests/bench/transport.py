"""The blob store's speed and memory, side by side with curl to nginx and with iperf3.

    python tests/bench/transport.py [figures=loopback,memory,wan,bytes] [size_mb=1000]
                                    [folder=/dev/shm] [repeats=6] [wan_mb=1000]

Both sides of a comparison use the same folder, machine and minute, without TLS. Ours checks the
BLAKE3 of the whole (and the CRC-32C of what goes down), keeps a journal, fsyncs and renames; curl
and nginx do none of that. Ours is timed inside its process, curl as a process. The two take turns,
each as often first, and the figure is the best turn of ours to the best of theirs: what else the
machine does takes from one connection more than from many, so a median would flatter us (it is told
too). Processor seconds of client and server together depend least on who else is there.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter, sleep

import numpy as np
from blake3 import blake3
from figures import figure, machine, warm_memory

sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))

PARTS = ("loopback", "memory", "wan", "bytes")
DEFAULTS = {"size_mb": "1000", "folder": "/dev/shm", "repeats": "6", "wan_mb": "1000",
            "figures": ",".join(PARTS)}  # fmt: skip
NGINX = """
worker_processes 2; pid {folder}/nginx.pid; error_log {folder}/nginx.log; user root;
events {{}}
http {{
  access_log off; sendfile on;
  server {{
    listen 127.0.0.1:{port}; root {folder}/nginx; client_max_body_size 0;
    client_body_temp_path {folder}/nginx-body;
    location / {{ dav_methods PUT; }}
  }}
}}
"""


def memory_mb(pid: int | str, *, key: str) -> float:
    """`VmRSS` or `VmHWM` of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith(key))


def reset_peak(pid: int | str) -> float:
    """Forgets a process's peak; returns its memory now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return memory_mb(pid, key="VmRSS")


def cpu_s(pids: list[int]) -> float:
    """Processor seconds of processes so far, and of children of this one that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ended.ru_utime + ended.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


def serve(folder: str, host: str, ready: Connection) -> None:
    """The server's process: tells its port, serves until told to end."""
    from pww.central.blob_http import BlobApp
    from pww.central.blobs import BlobStore
    from pww.clock import SystemClock
    from pww.transport.serve import AsgiServer

    clock = SystemClock()
    store = BlobStore(Path(folder), quota_bytes=10**12, replica_bytes=10**12, clock=clock)
    server = AsgiServer(host=host, port=0, key="central.port")
    server.start(BlobApp(store, clock=clock), name="blobs")
    ready.send(server.port)
    while (order := ready.recv()) != "end":
        store.discard(order)
        ready.send("done")
    server.stop()


def transfer(url: str, path: str, info: dict[str, object], ready: Connection) -> None:
    """The client's process: does what it is told, tells seconds and memory above its start."""
    from pww.clock import SystemClock
    from pww.transport.blob import BlobCarrier
    from pww.wire import PayloadInfo

    wanted = PayloadInfo.model_validate(info)
    client = BlobCarrier(
        url, clock=SystemClock(), stop=threading.Event(), random=np.random.default_rng()
    )
    while (order := ready.recv()) != "end":
        before_mb, start = reset_peak("self"), perf_counter()
        if order == "up":
            client.put(Path(path), wanted)
        else:
            client.get(wanted, Path(order))
        took_s = perf_counter() - start
        ready.send((took_s, memory_mb("self", key="VmHWM") - before_mb))


class Process:
    """A function in a fresh process, and a pipe to it."""

    def __init__(self, target: Callable[..., None], *words: object) -> None:
        self.pipe, theirs = get_context("spawn").Pipe()
        self.process = get_context("spawn").Process(target=target, args=(*words, theirs))
        self.process.start()

    def ask(self, order: str) -> object:
        self.pipe.send(order)
        return self.pipe.recv()

    def end(self) -> None:
        with suppress(OSError):
            self.pipe.send("end")
        self.process.join(10)
        self.process.kill()


class Ours:
    """The blob store and a client of it, in processes of their own."""

    def __init__(self, folder: Path, source: Path) -> None:
        with source.open("rb") as file:
            self.digest = blake3(file.read()).hexdigest()
        info = {"codec": "fp32", "size_bytes": source.stat().st_size, "digest": self.digest}
        self.server = Process(serve, str(folder / "store"), "127.0.0.1")
        url = f"http://127.0.0.1:{self.server.pipe.recv()}"
        self.client = Process(transfer, url, str(source), info)
        self.back = folder / "back"
        self.peaks_mb: list[tuple[float, float]] = []  # client, server

    def move(self, order: str) -> float:
        """One transfer; its seconds."""
        pid = self.server.process.pid or 0
        before_mb = reset_peak(pid)
        took_s, client_mb = self.client.ask(order)  # type: ignore[misc]
        self.peaks_mb.append((client_mb, memory_mb(pid, key="VmHWM") - before_mb))
        return took_s  # type: ignore[no-any-return]

    def pids(self) -> list[int]:
        """Whose processor time counts."""
        return [self.server.process.pid or 0, self.client.process.pid or 0]

    def before(self, way: str) -> None:
        """Removes what the last turn left, so that it travels; a download needs what was sent."""
        if way == "up":
            self.server.ask(self.digest)
        self.back.unlink(missing_ok=True)

    def up(self) -> float:
        return self.move("up")

    def down(self) -> float:
        return self.move(str(self.back))

    def end(self) -> None:
        self.client.end()
        self.server.end()
        self.back.unlink(missing_ok=True)


class Nginx:
    """nginx with PUT, and curl."""

    def __init__(self, folder: Path, source: Path) -> None:
        import socket

        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        for name in ("nginx", "nginx-body"):
            (folder / name).mkdir()
        config = folder / "nginx.conf"
        config.write_text(NGINX.format(folder=folder, port=port))
        self.source, self.folder, self.url = source, folder, f"http://127.0.0.1:{port}/object"
        self.process = subprocess.Popen(
            ["nginx", "-c", str(config), "-g", "daemon off;"], stderr=subprocess.DEVNULL
        )
        for _ in range(200):
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", port)).close()
                return
            sleep(0.02)
        sys.exit("nginx does not start")

    def curl(self, *words: str) -> float:
        start = perf_counter()
        done = subprocess.run(
            ["curl", "-sSf", *words, self.url], stdout=subprocess.DEVNULL, check=False
        )
        if done.returncode != 0:
            sys.exit(f"curl failed: {done.returncode}")
        return perf_counter() - start

    def pids(self) -> list[int]:
        """The workers: each curl is a child of this process, and has ended."""
        pid = self.process.pid
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def before(self, way: str) -> None:
        """As `Ours.before`."""
        if way == "up":
            (self.folder / "nginx" / "object").unlink(missing_ok=True)
        (self.folder / "curl-back").unlink(missing_ok=True)

    def up(self) -> float:
        return self.curl("-T", str(self.source))

    def down(self) -> float:
        return self.curl("-o", str(self.folder / "curl-back"))

    def end(self) -> None:
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.folder / "nginx")
        (self.folder / "curl-back").unlink(missing_ok=True)


def compare(folder: Path, nginx: Nginx, ours: Ours, *, size_mb: int, repeats: int) -> None:
    """Prints `loopback_vs_nginx` and its parts."""
    rates: dict[str, list[float]] = {}
    busy_s: dict[str, list[float]] = {}
    for turn in range(repeats):
        for way in ("up", "down"):
            for who in ("nginx", "ours") if turn % 2 == 0 else ("ours", "nginx"):
                peer = {"nginx": nginx, "ours": ours}[who]
                warm_memory(folder, size_mb * 10**6)
                peer.before(way)
                before_s = cpu_s(peer.pids())
                took_s = peer.up() if way == "up" else peer.down()
                busy_s.setdefault(f"{who}_{way}", []).append(cpu_s(peer.pids()) - before_s)
                rates.setdefault(f"{who}_{way}", []).append(size_mb / took_s)
    for name, told, digits in (("mb_per_s", rates, 0), ("processor_s", busy_s, 2)):
        print(json.dumps({name: {k: [round(x, digits) for x in v] for k, v in told.items()}}))
    found = {}
    for way in ("up", "down"):
        ours_mb, theirs_mb = np.array(rates[f"ours_{way}"]), np.array(rates[f"nginx_{way}"])
        found[way] = float(ours_mb.max() / theirs_mb.max())
        what = (
            f"x curl to nginx, {size_mb} MB on {folder.parent}, best to best of {repeats} turns "
            f"(median of their ratios {np.median(ours_mb / theirs_mb):.2f}); processor seconds "
            f"{min(busy_s[f'ours_{way}']):.2f} to {min(busy_s[f'nginx_{way}']):.2f}"
        )
        figure(f"loopback_{way}_vs_nginx", found[way], what, ">= 0.8")
    what = f"x curl to nginx, {size_mb} MB, slower way"
    figure("loopback_vs_nginx", min(found.values()), what, ">= 0.8")


def loopback(folder: Path, *, size_mb: int, repeats: int, parts: set[str]) -> None:
    """Prints `loopback_vs_nginx`, its parts, and `peak_memory_mb`."""
    source = folder / "source"
    with source.open("wb") as file:
        for seed in range(size_mb):
            file.write(np.random.default_rng(seed).bytes(10**6))
    ours = Ours(folder, source)
    try:
        if "loopback" in parts:
            missing = [name for name in ("nginx", "curl") if shutil.which(name) is None]
            if missing:
                sys.exit(f"{' and '.join(missing)} not found: apt-get install nginx-light curl")
            nginx = Nginx(folder, source)
            compare(folder, nginx, ours, size_mb=size_mb, repeats=repeats)
            nginx.end()
        else:
            ours.up()
            ours.down()
        if "memory" in parts:
            client_mb = max(client for client, _ in ours.peaks_mb)
            server_mb = max(server for _, server in ours.peaks_mb)
            what = (
                f"MB above the start (client {client_mb:.0f}, server {server_mb:.0f}), {size_mb} MB"
            )
            figure("peak_memory_mb", max(client_mb, server_mb), what, "<= 100")
    finally:
        ours.end()


def main(words: list[str]) -> None:
    """Prints the figures that were asked for."""
    given = dict(word.partition("=")[::2] for word in words)
    if unknown := sorted(set(given) - set(DEFAULTS)):
        sys.exit(f"unknown words {unknown}: there are {sorted(DEFAULTS)}")
    asked = {**DEFAULTS, **given}
    parts = set(asked["figures"].split(","))
    if not parts <= set(PARTS):
        sys.exit(f"figures={asked['figures']}: there are {','.join(PARTS)}")
    print(json.dumps({"machine": machine()}), flush=True)
    with tempfile.TemporaryDirectory(dir=asked["folder"], prefix="pww-bench-") as name:
        if parts & {"loopback", "memory"}:
            loopback(
                Path(name),
                size_mb=int(asked["size_mb"]),
                repeats=int(asked["repeats"]),
                parts=parts,
            )
        if "bytes" in parts:
            from round_bytes import round_figures

            round_figures(Path(name))
    if "wan" in parts:
        from wan import wan_figure

        wan_figure(size_mb=int(asked["wan_mb"]), repeats=int(asked["repeats"]))


if __name__ == "__main__":
    main(sys.argv[1:])
