"""Kill -9 of either end in the middle of a transfer: the other goes on, and little travels twice.

The kill happens while a chosen request is on its way, so nothing here depends on how fast the
machine is.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))

from bad_http import BadHttp, Forward, HangUp, Reply, Request
from blob_desk import PIECE, QUICK, Desk, carrier, made

PROGRAM = Path(__file__).parents[1] / "programs" / "blob_desk.py"
SIZE_BYTES = 40 * PIECE + 5
NUM_PIECES = 41
KILLS = 2


class Process:
    """A program that is killed at the end at the latest."""

    def __init__(self, *words: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, str(PROGRAM), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def kill(self) -> None:
        self.popen.send_signal(signal.SIGKILL)
        self.popen.communicate()

    def end(self) -> int:
        _, errors = self.popen.communicate(timeout=60)
        assert self.popen.returncode in (0, -signal.SIGKILL), errors.decode()
        return self.popen.returncode


@pytest.fixture
def servers() -> Iterator[list[Process]]:
    started: list[Process] = []
    yield started
    for server in started:
        server.kill()


def test_central_dies(tmp_path: Path, servers: list[Process]) -> None:
    """Twice in one upload and twice in one download; the client sees an outage."""
    path, info = made(tmp_path, 1, size_bytes=SIZE_BYTES)
    random = np.random.default_rng(7)
    at = {"PUT": set(random.integers(3, NUM_PIECES - 3, KILLS)),
          "GET": set(random.integers(3, NUM_PIECES - 3, KILLS))}  # fmt: skip
    seen = {"PUT": 0, "GET": 0, "POST": 0}

    def start() -> int:
        server = Process("serve", str(tmp_path / "store"), "0", str(PIECE))
        servers.append(server)
        assert server.popen.stdout is not None
        return int(json.loads(server.popen.stdout.readline())["port"])

    def killing(request: Request, forward: Forward) -> Reply:
        seen[request.method] += 1
        if seen[request.method] in at.get(request.method, ()):
            servers[-1].kill()
            proxy._target = start()
            raise HangUp
        try:
            return forward(request)
        except (OSError, IndexError):
            raise HangUp from None

    one = QUICK.__class__(
        retry_first_s=0.001, retry_max_s=0.01, deadline_s=60.0, min_streams=1, max_streams=1,
        piece_bytes=PIECE,
    )  # fmt: skip
    with BadHttp(start(), killing) as proxy:
        client = carrier(proxy.url, tuning=one)
        client.put(path, info)
        assert client.transfers().bytes_up == SIZE_BYTES, "no finished piece travelled again"
        assert seen["PUT"] == NUM_PIECES + len(at["PUT"])
        client.get(info, tmp_path / "back")
        assert client.transfers().bytes_down == SIZE_BYTES
    assert (tmp_path / "back").read_bytes() == path.read_bytes()
    assert len(servers) == 1 + len(at["PUT"]) + len(at["GET"])


@pytest.mark.parametrize("method", ["PUT", "GET"])
def test_client_dies(tmp_path: Path, method: str) -> None:
    """Twice; its next process asks for, or sends, only what is not there."""
    path, info = made(tmp_path, 2, size_bytes=SIZE_BYTES)
    desk = Desk.open(tmp_path / "store")
    if method == "GET":
        desk.store.publish(info, path)
    random = np.random.default_rng(len(method))
    at = set(random.integers(5, NUM_PIECES - 5, KILLS))
    clients: list[Process] = []
    seen: list[str] = []
    answered: list[str] = []

    def killing(request: Request, forward: Forward) -> Reply:
        if request.method != method:
            return forward(request)
        seen.append(request.target)
        if len(seen) in at:
            os.kill(clients[-1].popen.pid, signal.SIGKILL)
            raise HangUp
        reply = forward(request)
        answered.append(request.headers.get("range", request.target))
        return reply

    words = [method.lower(), "", str(path)]
    if method == "GET":
        words = ["get", "", info.digest, str(info.size_bytes), str(tmp_path / "back")]
    with BadHttp(desk.server.port, killing) as proxy:
        words[1] = proxy.url
        for _ in range(len(at) + 1):
            clients.append(Process(*words))
            if clients[-1].end() == 0:
                break
            assert not (tmp_path / "back").exists()
            assert desk.store.path(info.digest) is None or method == "GET"
    there = tmp_path / "back" if method == "GET" else desk.store.path(info.digest)
    assert there is not None
    assert there.read_bytes() == path.read_bytes()
    assert len(clients) == len(at) + 1
    wasted = len(answered) - len(set(answered))
    assert len(set(answered)) == NUM_PIECES
    assert wasted <= 2 * len(at), f"two streams, {len(at)} kills: {wasted} pieces travelled twice"
    assert not list((tmp_path / "store" / "uploads").iterdir())
    assert all(re.match(r"/v1/blobs/", target) for target in seen)
    desk.close()
