"""Which code a run was started with: frozen beside its configuration, and kept for queued jobs.

    RUN/code.json        commit, digest of the package, versions of what it stands on
    RUN/code.diff        what the clone had changed since that commit, if anything
    ROOT/code/DIGEST/pww the package as it was submitted; jobs of the same code share it

Only the package is copied: without `conf/` beside it, its project is the folder that the job starts
in, which is the clone with its data and outputs.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from pww.config import paths
from pww.errors import StateError
from pww.folder import write_durably

FILE, DIFF = "code.json", "code.diff"
PACKAGES = (
    "torch", "torchtitan", "tokenizers", "safetensors", "numpy", "pydantic", "flwr", "hydra-core",
    "omegaconf", "submitit",
)  # fmt: skip
MAX_DIFF = 8 << 20


@dataclass(frozen=True, slots=True)
class Code:
    """One state of the code."""

    digest: str  # of the package's files
    commit: str  # "none" outside of a git clone
    changed: bool  # the clone's tracked files differ from the commit
    python: str
    packages: dict[str, str]


def current() -> tuple[Code, bytes]:
    """The code that this process runs, and the clone's changes since its commit."""
    commit = _git("rev-parse", "HEAD").decode().strip()
    diff = _git("diff", "HEAD", "--binary") if commit else b""
    code = Code(
        digest=digest(paths.PACKAGE),
        commit=commit or "none",
        changed=bool(diff),
        python=".".join(map(str, sys.version_info[:3])),
        packages={name: _version(name) for name in PACKAGES},
    )
    return code, diff


def freeze(code: Code, diff: bytes, folder: Path) -> str:
    """Writes it into a run's folder; says if the run was started with other code, else "".

    Raises:
        StateError: the folder cannot be written.
    """
    before = recorded(folder)
    if len(diff) > MAX_DIFF:
        diff = f"{len(diff)} bytes of changes, too many to keep here\n".encode()
    try:
        write_durably(folder / FILE, (json.dumps(asdict(code), indent=2) + "\n").encode())
        if diff:
            write_durably(folder / DIFF, diff)
        else:
            (folder / DIFF).unlink(missing_ok=True)
    except OSError as why:
        raise StateError(f"cannot note the code in {folder}: {why}; make room") from why
    if before is None or before["digest"] == code.digest:
        return ""
    was = str(before["commit"])[:12]
    return f"the code has changed since this run was started (commit {was} -> {code.commit[:12]})"


def recorded(folder: Path) -> dict[str, object] | None:
    """What `freeze` wrote; None if there is nothing that can be read."""
    try:
        found = json.loads((folder / FILE).read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and {"digest", "commit"} <= found.keys() else None


def in_short(code: Mapping[str, object]) -> str:
    """A state of the code on a line, from a `Code` as a dict or what `recorded` gives."""
    changed = ", changed" if code.get("changed") else ""
    return f"{code['digest']} (commit {str(code['commit'])[:12]}{changed})"


def keep(code: Code, root: Path) -> Path:
    """A copy of the package below `root`, made once for each state of the code.

    Raises:
        StateError: there is no room for it.
    """
    folder = kept_in(code, root)
    if (folder / "pww" / "worker.py").is_file():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=".part-", dir=folder.parent))
        part.chmod(0o755)
        shutil.copytree(
            paths.PACKAGE, part / "pww", ignore=shutil.ignore_patterns("__pycache__", "_conf"),
            copy_function=shutil.copy,  # new files: a purge of scratch goes by their age
        )  # fmt: skip
        try:
            part.rename(folder)
        except OSError:  # another launch was first, or half of an older one was purged
            if not (folder / "pww" / "worker.py").is_file():
                shutil.rmtree(folder, ignore_errors=True)
                part.rename(folder)
            else:
                shutil.rmtree(part)
    except OSError as why:
        raise StateError(
            f"cannot keep the submitted code in {folder}: {why}; make room, or give run.root=…"
        ) from why
    return folder


def kept_in(code: Code, root: Path) -> Path:
    """Where `keep` puts it."""
    return root / "code" / code.digest


def digest(package: Path) -> str:
    """16 hex digits of every file below `package`, names included."""
    total = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            name, data = path.relative_to(package).as_posix(), path.read_bytes()
            total.update(f"{len(name)} {name} {len(data)} ".encode())
            total.update(data)
    return total.hexdigest()[:16]


def _git(*words: str) -> bytes:
    try:
        done = subprocess.run(
            ["git", "-C", str(paths.PACKAGE.parent), *words], capture_output=True, timeout=60,
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return b""
    return done.stdout if done.returncode == 0 else b""


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "none"
