"""Processes born by a nursery (nursery.py): real ones, whose imports were paid once."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path

NURSERY = Path(__file__).with_name("nursery.py")


class Nursery:
    """One nursery process; `start` has the program forked there."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(NURSERY)], cwd=folder, env=env, text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.codes: dict[int, int] = {}
        self.ended = threading.Condition()
        self._born: queue.Queue[int] = queue.Queue()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            with self.ended:
                if "ready" in told:
                    self._ready.set()
                elif "code" in told:
                    self.codes[told["pid"]] = told["code"]
                    self.ended.notify_all()
                else:
                    self.codes.pop(told["pid"], None)  # of an earlier one: numbers come round again
                    self._born.put(told["pid"])

    def start(self, *argv: str, out: Path, err: Path | None = None, **env: str) -> "Born":
        """Starts `python ARGV`; what it says is added to the files, or to the one file."""
        assert self._ready.wait(120), "the nursery does not start"
        assert self._process.stdin is not None
        order = {"argv": argv, "out": str(out), "err": str(err or out), "env": env}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return Born(self, self._born.get(timeout=30))

    def run(
        self, *argv: str, folder: Path, timeout_s: float = 180, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs `python ARGV` to its end; what it says goes through two files in `folder`."""
        files = [folder / f"run-{name}.log" for name in ("out", "err")]
        born = self.start(*argv, out=files[0], err=files[1], **env)
        try:
            code = born.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.kill(born.pid, signal.SIGKILL)
            raise
        said = [file.read_text() for file in files]
        for file in files:
            file.unlink()
        return subprocess.CompletedProcess(argv, code, *said)

    def close(self) -> None:
        """Ends it with all that it bore."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(120)
        self._thread.join(30)
        assert self._process.stdout is not None
        self._process.stdout.close()


class Born:
    """`subprocess.Popen` of a process that a nursery bore, as far as tests need it."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery, self.pid = nursery, pid
        self._code: int | None = None

    @property
    def returncode(self) -> int | None:
        return self._code

    def poll(self) -> int | None:
        """Its exit code, minus the signal's number if one ended it; None while it runs."""
        if self._code is None:
            self._code = self._nursery.codes.get(self.pid)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """As soon as it has ended.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        with self._nursery.ended:
            if self._nursery.ended.wait_for(lambda: self.poll() is not None, timeout):
                assert self._code is not None
                return self._code
        raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
