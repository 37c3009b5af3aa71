"""The blob store over a long fat lossy link, against iperf3 with as many streams on the same link.

Two network namespaces with a TUN device each, and a process between them that delays, drops and
paces every packet: what `tc netem` does, which many kernels lack. Packets are 9000 bytes, so that
Python keeps up with a gigabit. Needs root, /dev/net/tun, ip, nsenter and iperf3.

    wan.py hold ADDRESS FD | forward FD FD | serve ADDRESS FOLDER | move URL put|get FILE SHA SIZE
"""

import ctypes
import fcntl
import json
import os
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections import deque
from contextlib import ExitStack, suppress
from pathlib import Path
from time import perf_counter, sleep

import numpy as np
from blake3 import blake3

RATE_BITS, DELAY_S, LOSS, QUEUE_S = 1e9, 0.05, 0.001, 0.1
"""A gigabit, 100 ms there and back, one packet of a thousand lost each way, 12.5 MB of buffer."""
MTU = 9000
STREAMS = 48
"""As many as the carrier may open."""
SERVER, CLIENT = "10.77.0.1", "10.77.0.2"
CLONE_NEWNET, TUNSETIFF, IFF_TUN_NO_PI = 0x40000000, 0x400454CA, 0x1001


def hold(address: str, fd: int) -> None:
    """Makes a namespace with one end of the link, hands the device over, and keeps it alive."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        sys.exit(f"unshare: {os.strerror(ctypes.get_errno())}")
    tun = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", b"wan", IFF_TUN_NO_PI))
    for words in (["addr", "add", f"{address}/24", "dev", "wan"], ["link", "set", "lo", "up"],
                  ["link", "set", "wan", "mtu", str(MTU), "txqlen", "10000", "up"]):  # fmt: skip
        subprocess.run(["ip", *words], check=True)
    with socket.socket(fileno=fd) as control:
        socket.send_fds(control, [b"x"], [tun])
        control.recv(1)  # until the other end is closed


class Way:
    """One direction of the link."""

    def __init__(self, source: int, sink: int, seed: int) -> None:
        self.source, self.sink, self.free_s = source, sink, 0.0
        self.packets: deque[tuple[float, bytes]] = deque()
        self.random = np.random.default_rng(seed)
        self.dice = iter(())

    def lost(self) -> bool:
        try:
            return next(self.dice) < LOSS
        except StopIteration:
            self.dice = iter(self.random.random(10_000).tolist())
            return self.lost()

    def take(self, now_s: float) -> None:
        """Packets that came into the link."""
        for _ in range(64):
            try:
                packet = os.read(self.source, 65536)
            except BlockingIOError:
                return
            starts_s = max(now_s, self.free_s)
            if self.lost() or starts_s - now_s > QUEUE_S:
                continue
            self.free_s = starts_s + len(packet) * 8 / RATE_BITS
            self.packets.append((self.free_s + DELAY_S, packet))

    def give(self, now_s: float) -> float:
        """Packets that leave it; when the next one will."""
        while self.packets and self.packets[0][0] <= now_s:
            with suppress(BlockingIOError):
                os.write(self.sink, self.packets.popleft()[1])
        return self.packets[0][0] - now_s if self.packets else 1.0


def forward(first: int, second: int) -> None:
    """The link, until it is killed."""
    with suppress(PermissionError):
        os.nice(-15)
    ways = {first: Way(first, second, 1), second: Way(second, first, 2)}
    for fd in ways:
        os.set_blocking(fd, False)
    while True:
        now_s = perf_counter()
        wait_s = min(way.give(now_s) for way in ways.values())
        for fd in select.select(list(ways), [], [], max(wait_s, 0.0))[0]:
            ways[fd].take(perf_counter())


def serve(address: str, folder: str) -> None:
    """The blob store, until it is killed; prints its port."""
    from pww.central.blob_http import BlobApp
    from pww.central.blobs import BlobStore
    from pww.clock import SystemClock
    from pww.transport.serve import AsgiServer

    clock = SystemClock()
    store = BlobStore(Path(folder), quota_bytes=10**12, replica_bytes=10**12, clock=clock)
    server = AsgiServer(host=address, port=0, key="central.port")
    server.start(BlobApp(store, clock=clock), name="blobs")
    print(server.port, flush=True)
    threading.Event().wait()


def move(url: str, verb: str, file: str, digest: str, size: str) -> None:
    """One transfer with the product's defaults; prints its seconds and repeats."""
    from pww.clock import SystemClock
    from pww.transport.blob import BlobCarrier
    from pww.wire import PayloadInfo

    info = PayloadInfo(codec="fp32", size_bytes=int(size), digest=digest)
    client = BlobCarrier(
        url, clock=SystemClock(), stop=threading.Event(), random=np.random.default_rng()
    )
    start = perf_counter()
    client.put(Path(file), info) if verb == "put" else client.get(info, Path(file))
    print(json.dumps([perf_counter() - start, client.transfers().retries]))


def start(stack: ExitStack, *words: str, fds: tuple[int, ...] = (), inside: int = 0,
          python: bool = True) -> subprocess.Popen[str]:  # fmt: skip
    """A process that is killed at the end; `inside` the namespace of another."""
    enter = ["nsenter", f"--net=/proc/{inside}/ns/net"] if inside else []
    command = [*enter, *([sys.executable, __file__] if python else []), *words]
    process = subprocess.Popen(command, pass_fds=fds, stdout=subprocess.PIPE, text=True)
    stack.callback(process.communicate)
    stack.callback(process.kill)
    return process


def output(*words: str, inside: int, python: bool = True) -> str:
    """What a command in a namespace prints."""
    with ExitStack() as stack:
        process = start(stack, *words, inside=inside, python=python)
        told, _ = process.communicate(timeout=600)
        if process.returncode != 0:
            sys.exit(f"{words[:2]} failed: {told[-500:]}")
        return told


def iperf(stack: ExitStack, server: int, client: int, *, reverse: bool, seconds: float) -> float:
    """What iperf3 gets through the link, in MB/s of received bytes."""
    words = ("-1", "-B", SERVER, "--logfile", os.devnull)  # nobody reads its pipe, which fills
    start(stack, "iperf3", "-s", *words, inside=server, python=False)
    sleep(1.0)
    told = output(
        "iperf3", "-c", SERVER, "-P", str(STREAMS), "-t", f"{seconds:.0f}", "-J",
        *(["-R"] if reverse else []), inside=client, python=False,
    )  # fmt: skip
    return float(json.loads(told)["end"]["sum_received"]["bits_per_second"]) / 8e6


def why_not() -> str:
    """What is missing on this machine; "" if it can be measured."""
    missing = [name for name in ("iperf3", "nsenter", "ip") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed"
    if os.geteuid() != 0 or not os.access("/dev/net/tun", os.W_OK):
        return "not root, or no /dev/net/tun"
    return ""


def wan_figure(*, size_mb: int, repeats: int) -> None:
    """Prints `wan_vs_iperf3`, or why it cannot be measured here."""
    from figures import figure

    if reason := why_not():
        print(json.dumps({"figure": "wan_vs_iperf3", "skipped": reason}), flush=True)
        return
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        source = folder / "source"
        source.write_bytes(np.random.default_rng(0).bytes(size_mb * 10**6))
        digest = blake3(source.read_bytes()).hexdigest()
        devices, spaces = [], []
        for address in (SERVER, CLIENT):
            ours, theirs = socket.socketpair()
            with theirs:
                words = ("hold", address, str(theirs.fileno()))
                spaces.append(start(stack, *words, fds=(theirs.fileno(),)).pid)
            stack.callback(ours.close)
            devices += socket.recv_fds(ours, 1, 1)[1]
        start(stack, "forward", *map(str, devices), fds=tuple(devices))
        server, client = spaces
        serving = start(stack, "serve", SERVER, str(folder / "store"), inside=server)
        assert serving.stdout is not None
        url = f"http://{SERVER}:{serving.stdout.readline().strip()}"
        words, size = (url, str(source), digest), str(size_mb * 10**6)
        rates: dict[str, list[float]] = {}
        for turn in range(repeats):
            if turn:  # so that it travels again
                source.write_bytes(np.random.default_rng(turn).bytes(size_mb * 10**6))
                digest = blake3(source.read_bytes()).hexdigest()
            for verb, file in (("put", str(source)), ("get", str(folder / f"back-{turn}"))):
                words = ("move", url, verb, file, digest, size)
                took_s, retries = json.loads(output(*words, inside=client))
                theirs_mb = iperf(
                    stack, server, client, reverse=verb == "get", seconds=max(took_s, 5.0)
                )
                rates.setdefault(f"ours_{verb}", []).append(size_mb / took_s)
                rates.setdefault(f"iperf3_{verb}", []).append(theirs_mb)
                rates.setdefault("retries", []).append(retries)
                pair = {"way": verb, "ours": round(size_mb / took_s), "iperf3": round(theirs_mb)}
                print(json.dumps({**pair, "unit": "MB/s"}), flush=True)
            (folder / f"back-{turn}").unlink()
        print(json.dumps({"mb_per_s": {k: [round(x, 1) for x in v] for k, v in rates.items()}}))
        ratios = [
            float(np.median(rates[f"ours_{verb}"]) / np.median(rates[f"iperf3_{verb}"]))
            for verb in ("put", "get")
        ]
        what = (
            f"x iperf3 -P {STREAMS}, {size_mb} MB, median of {repeats}, slower way (up "
            f"{ratios[0]:.2f}, down {ratios[1]:.2f}); 1 Gbit/s, 100 ms, 0.1 % loss by a process "
            "between two TUN devices (not netem), packets of 9000 bytes"
        )
        figure("wan_vs_iperf3", min(ratios), what, ">= 0.8")


def main(words: list[str]) -> None:
    """Runs one of the programs."""
    match words:
        case ["hold", address, fd]:
            hold(address, int(fd))
        case ["forward", first, second]:
            forward(int(first), int(second))
        case ["serve", address, folder]:
            serve(address, folder)
        case ["move", url, verb, file, digest, size]:
            move(url, verb, file, digest, size)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
