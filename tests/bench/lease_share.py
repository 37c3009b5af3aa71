"""What of a training loop's time goes to leasing: a real session against a coordinator with TLS.

The loop asks for a span, asks at every step whether it still holds it, and settles it; the steps
themselves are waits. Phases are short, so that the share is larger than in any run: an order of
magnitude more steps, or slower ones, make it an order of magnitude smaller.
"""

import json
import tempfile
import threading
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter

import numpy as np
from figures import figure, machine
from lease_http import REPLICAS, SPACE, must_be_secure, serve

from pww.central import credentials
from pww.clock import SystemClock
from pww.config.load import compose
from pww.replica.coordinator_client import HttpCoordinator
from pww.replica.session import Session
from pww.transport.bundle import Bundle

PHASES, STEPS, STEP_S = 10, 50, 0.1
BLOCKS = 3


def loop(folder: Path, port: int) -> tuple[float, float]:
    """Seconds of the loop, and those that it spent on leases; the first phase is not counted."""
    clock, stop, config = SystemClock(), threading.Event(), compose([])
    bundle = Bundle.read(folder / "keys/bundles/bench", replica=REPLICAS[0], clock=clock)
    client = HttpCoordinator(
        f"https://localhost:{port}", config.transport, clock=clock, stop=stop,
        random=np.random.default_rng(), bundle=bundle,
    )  # fmt: skip
    session = Session(
        client, replica=REPLICAS[0], node_key="", space=SPACE, model="a" * 64, darl=config.darl,
        clock=clock, stop=stop, versions={},
    )  # fmt: skip
    session.register()
    leasing_s, start = 0.0, perf_counter()
    for phase in range(PHASES + 1):
        if phase == 1:
            leasing_s, start = 0.0, perf_counter()
        begin = perf_counter()
        lease = session.acquire(BLOCKS)
        assert lease is not None, "there are a billion"
        session.began()
        leasing_s += perf_counter() - begin
        for _ in range(STEPS):
            clock.wait(stop, STEP_S)
            begin = perf_counter()
            assert session.standing(lease.id) == "draw"
            leasing_s += perf_counter() - begin
        begin = perf_counter()
        session.settle(lease.id)
        session.measured(phase_s=STEPS * STEP_S, windows_per_s=BLOCKS / (STEPS * STEP_S))
        leasing_s += perf_counter() - begin
    whole_s = perf_counter() - start
    session.leave()
    client.close()
    return whole_s, leasing_s


def share_figure(folder: Path) -> None:
    """Prints `leasing_share`, measured on the disk of `folder`."""
    credentials.init(
        folder / "keys", hosts=["localhost"], replicas=REPLICAS, port=29510, clock=SystemClock()
    )
    ours, theirs = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=serve, args=(folder, theirs))
    process.start()
    try:
        port, synchronous, journal = ours.recv()
        must_be_secure(folder, port, synchronous, journal)
        whole_s, leasing_s = loop(folder, port)
        ours.send("end")
        ours.recv()
    finally:
        process.join(30)
        process.kill()
    what = f"% of the loop's time, {PHASES} phases of {STEPS * STEP_S:.0f} s"
    figure("leasing_share", 100 * leasing_s / whole_s, what, "< 0.5")


if __name__ == "__main__":
    print(json.dumps({"machine": machine()}), flush=True)
    with tempfile.TemporaryDirectory() as name:
        share_figure(Path(name))
