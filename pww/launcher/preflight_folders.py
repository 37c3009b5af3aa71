"""The folders of a run: may they be written to, and is there room, by their quota where one is.

A file system with petabytes free says nothing of a user whose quota is full, so Lustre and the
system's own `quota` are asked where they are.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pww.config import paths
from pww.config.schema import Config, Images
from pww.launcher.finding import Finding, State

GOOD_GB, LEAST_GB = 20.0, 1.0
GOOD_FILES, LEAST_FILES = 10_000, 500
ANSWER_S = 20.0
MOUNTS = Path("/proc/self/mounts")


@dataclass(frozen=True, slots=True)
class Room:
    """What may still be written, and what says so."""

    bytes: float
    files: float
    by: str


def findings(config: Config) -> Iterator[Finding]:
    """Each folder that a run writes to."""
    wanted = {
        "runs": paths.PROJECT / config.run.root,
        "home": Path.home(),
    }
    if not isinstance(config.data, Images):
        wanted["corpora"] = paths.PROJECT / config.data.cache
    if config.site.scratch != "none":
        wanted["scratch"] = Path(config.site.scratch)
    for what, folder in wanted.items():
        yield _folder(what, folder)


def _folder(what: str, folder: Path) -> Finding:
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not os.access(there, os.W_OK):
        return Finding(what, "bad", f"{folder}: {there} may not be written to; give another folder")
    space = os.statvfs(there)
    rooms = [
        Room(
            space.f_bavail * space.f_frsize,
            space.f_favail if space.f_files else float("inf"),  # some file systems count none
            "on its file system",
        ),
        *quotas(there),
    ]
    tightest = min(rooms, key=lambda room: room.bytes)
    free_gb, files = tightest.bytes / 1e9, min(room.files for room in rooms)
    by = " and ".join(dict.fromkeys(room.by for room in rooms))
    counted = "" if files == float("inf") else f" and {files:.0f} files"
    told = f"{folder}: {free_gb:.0f} GB{counted} left {by}"
    state: State = "good"
    if free_gb < LEAST_GB or files < LEAST_FILES:
        state, told = "bad", f"{told}; make room"
    elif free_gb < GOOD_GB or files < GOOD_FILES:
        state, told = "warning", f"{told}; a few checkpoints may fill it"
    figures = {"free_bytes": tightest.bytes}
    return Finding(what, state, told, figures if counted == "" else {**figures, "files": files})


def quotas(folder: Path) -> Iterator[Room]:
    """What quotas leave in `folder`; nothing where none is set, or nobody can be asked."""
    source, kind = _mount(folder.resolve())
    if kind == "lustre" and shutil.which("lfs"):
        user = str(os.getuid())
        yield from _lines(_said("lfs", "quota", "-q", "-u", user, str(folder)), "by your quota")
        project = _said("lfs", "project", "-d", str(folder)).split()
        if project and project[0].isdecimal() and project[0] != "0":
            said = _said("lfs", "quota", "-q", "-p", project[0], str(folder))
            yield from _lines(said, "by the project's quota")
    elif shutil.which("quota"):
        # -w: a line each; -p: the columns of times are never empty
        for line in _said("quota", "-wp").splitlines():
            if line.split()[:1] == [source]:
                yield from _lines(line, "by your quota")


def _lines(said: str, by: str) -> Iterator[Room]:
    """`SOURCE KIB quota limit time FILES quota limit time`, as both commands print it."""
    words = [word.strip("*[]") for word in said.split()][1:9]
    if len(words) < 8:
        return
    kib, files = words[0:3], words[4:7]
    if not all(word.isdecimal() for word in (*kib, *files)):
        return
    left_kib, left_files = _left(kib), _left(files)
    if min(left_kib, left_files) < float("inf"):
        yield Room(left_kib * 1024, left_files, by)


def _left(words: list[str]) -> float:
    """Used, quota, limit: until the lower of the two that are set (0: not set)."""
    used, *limits = (int(word) for word in words)
    return max(min((one for one in limits if one), default=float("inf")) - used, 0)


def _mount(folder: Path) -> tuple[str, str]:
    """Source and kind of the file system that `folder` is on."""
    best, found = -1, ("", "")
    try:
        lines = MOUNTS.read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        source, at, kind, *_ = [*line.split(), "", "", ""]
        at = at.encode().decode("unicode_escape")  # a space is written \040
        if folder.is_relative_to(at) and len(at) > best:
            best, found = len(at), (source, kind)
    return found


def _said(*command: str) -> str:
    """What a command of the machine prints; "" if it fails: then its file system alone is told."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=ANSWER_S, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
