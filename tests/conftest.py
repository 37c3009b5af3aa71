"""What the tests of real processes share: a copy of the project to run in, and children that never
outlive a test.

`project` starts them as a user does. `nursed` has them forked from a process that has imported all
that they need (programs/nursery.py): three quarters of a start are imports, so that is for tests of
what processes do with one another, whatever started them.
"""

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest
from rich.logging import RichHandler

sys.path.insert(0, str(Path(__file__).parent / "programs"))

from slurm_site import box, submitter  # noqa: F401 - fixtures of tests/slurm

ROOT = Path(__file__).resolve().parents[1]
CLOSED_FORM = ROOT / "tests" / "programs" / "closed_form_site.py"
sys.path.insert(0, str(ROOT / "tests" / "programs"))

from births import Born, Nursery  # noqa: E402


@pytest.fixture(autouse=True)
def silenced() -> Iterator[None]:
    """What a test's `pww.log.setup` did ends with it: later tests have their own."""
    root = logging.getLogger()
    levels = {one: one.level for one in (root, logging.getLogger("pww"))}
    yield
    for one, level in levels.items():
        one.setLevel(level)
    for handler in list(root.handlers):
        if type(handler) in (logging.StreamHandler, RichHandler):  # not pytest's, which derive
            root.removeHandler(handler)


@dataclass
class Child:
    """A process in a group of its own, its output in a file."""

    process: subprocess.Popen | Born
    log: Path
    since: int = 0  # bytes that earlier ones had written to its log

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self.process.poll()

    def text(self) -> str:
        """What it said, after what others of its name did."""
        return self.log.read_text(errors="replace")

    def said(self) -> str:
        """What it said itself."""
        return self.log.read_bytes()[self.since :].decode(errors="replace")

    def signal(self, number: int) -> None:
        """To the whole group, as a terminal or a queue does it."""
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        self.process.wait()

    def wait(self, timeout_s: float = 120) -> int:
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {timeout_s} s:\n{self.text()[-3000:]}")

    def until(self, ready: Callable[[], object], timeout_s: float = 90) -> None:
        """Returns when `ready()` is true; fails when the process ends or the time is up first."""
        end = time.monotonic() + timeout_s
        while not ready():
            if self.code is not None and not ready():
                pytest.fail(f"ended with {self.code}:\n{self.text()[-3000:]}")
            if time.monotonic() > end:
                pytest.fail(f"nothing after {timeout_s} s:\n{self.text()[-3000:]}")
            time.sleep(0.02)


@dataclass
class Project:
    """A copy of the project in a folder of its own; commands run in it as a user would run them."""

    folder: Path
    env: dict[str, str]
    children: list[Child] = field(default_factory=list)

    @property
    def outputs(self) -> Path:
        return self.folder / "outputs"

    def start(self, *command: str, name: str, **env: str) -> Child:
        """Starts `python *command`."""
        log = self.folder / f"{name}.log"
        with log.open("ab") as out:
            process = subprocess.Popen(
                [sys.executable, *command], cwd=self.folder, env={**self.env, **env}, stdout=out,
                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        self.children.append(Child(process, log))
        return self.children[-1]

    def run(self, *command: str, timeout_s: float = 180) -> subprocess.CompletedProcess[str]:
        """Runs `python *command` to its end."""
        return subprocess.run(
            [sys.executable, *command], cwd=self.folder, env=self.env, capture_output=True,
            text=True, timeout=timeout_s, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip


@dataclass
class NursedProject(Project):
    """The same, its commands forked from a nursery that has imported what they import."""

    nursery: Nursery = field(kw_only=True)

    def start(self, *command: str, name: str, **env: str) -> Child:
        log = self.folder / f"{name}.log"
        log.touch()
        since = log.stat().st_size
        process = self.nursery.start(*command, out=log, **{**self.env, **env})
        self.children.append(Child(process, log, since))
        return self.children[-1]

    def run(self, *command: str, timeout_s: float = 180) -> subprocess.CompletedProcess[str]:
        return self.nursery.run(*command, folder=self.folder, timeout_s=timeout_s, **self.env)


def _environment(folder: Path) -> dict[str, str]:
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("PWW_", "WANDB_", "RANK"))}
    return {**keep, "PYTHONPATH": str(folder), "PYTHONUNBUFFERED": "1"}


@pytest.fixture(scope="session")
def project_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree that a user would clone, without history and outputs."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("conf", "pww", "launch"):
        shutil.copytree(ROOT / name, folder / name)  # what is compiled goes along
    for name in ("README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    (folder / "outputs").mkdir()
    return folder


@pytest.fixture
def project(project_copy: Path) -> Iterator[Project]:
    """The copy, with every child killed afterwards; a tokenised corpus is shared between tests."""
    yield from _cleared(Project(project_copy, _environment(project_copy)))


@pytest.fixture(scope="session")
def nursery(project_copy: Path) -> Iterator[Nursery]:
    """A nursery in the copy."""
    made = Nursery(project_copy, _environment(project_copy))
    yield made
    made.close()


@pytest.fixture
def nursed(project_copy: Path, nursery: Nursery) -> Iterator[NursedProject]:
    """`project`, its processes from the nursery."""
    made = NursedProject(project_copy, _environment(project_copy), nursery=nursery)
    yield from _cleared(made)


P = TypeVar("P", bound=Project)


def _cleared(made: P) -> Iterator[P]:
    before = set(made.outputs.iterdir())
    yield made
    for child in made.children:
        child.kill()
    for path in set(made.outputs.iterdir()) - before:
        if path.is_file():
            path.unlink()
        elif path.name != "data":
            shutil.rmtree(path)
    for log in made.folder.glob("*.log"):
        log.unlink()


@pytest.fixture
def free_ports() -> tuple[int, int]:
    """Two ports that nothing listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    ports = tuple(s.getsockname()[1] for s in sockets)
    for s in sockets:
        s.close()
    return ports  # type: ignore[return-value]
