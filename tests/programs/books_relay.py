"""A wire between an aggregator and the books' socket that loses what it is told to lose.

Knows of the protocol only that a message is four bytes of length and a body.
"""

import json
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Literal

Fate = Literal["pass", "lose the call", "lose the answer"]


class Relay:
    """Listens at `path`; `fate` of each call by its name and how often that came before."""

    def __init__(self, path: Path, target: Path, fate: Callable[[str, int], Fate]) -> None:
        self.path, self._target, self._fate = path, target, fate
        self.seen: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(8)
        self._listener.settimeout(0.1)
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(30)
        self._listener.close()

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                ours, _ = self._listener.accept()
            except TimeoutError:
                continue
            self._threads.append(threading.Thread(target=self._carry, args=(ours,)))
            self._threads[-1].start()

    def _carry(self, ours: socket.socket) -> None:
        with ours, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as theirs:
            ours.settimeout(0.1)
            try:
                theirs.connect(str(self._target))
                while (call := self._message(ours)) is not None:
                    name = json.loads(call).get("what") or json.loads(call)["call"]
                    fate = self._fate(name, self.seen[name])
                    self.seen[name] += 1
                    self.lost[name] += fate != "pass"
                    if fate == "lose the call":
                        return
                    theirs.sendall(struct.pack(">I", len(call)) + call)
                    theirs.settimeout(20)
                    answer = self._message(theirs)
                    if fate == "lose the answer" or answer is None:
                        return
                    ours.sendall(struct.pack(">I", len(answer)) + answer)
            except OSError:
                return

    def _message(self, source: socket.socket) -> bytes | None:
        head = self._exactly(source, 4)
        return None if head is None else self._exactly(source, struct.unpack(">I", head)[0])

    def _exactly(self, source: socket.socket, size: int) -> bytes | None:
        got = b""
        while len(got) < size:
            try:
                piece = source.recv(size - len(got))
            except TimeoutError:
                if self._ended.is_set():
                    return None
                continue
            if not piece:
                return None
            got += piece
        return got
