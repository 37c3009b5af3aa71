"""Generations: immutable folders of theta and momentum, one for each round, complete or absent.

    generations/round-000003/
        theta.safetensors      fp32, what sites download on joining
        momentum.safetensors   fp32, the outer optimiser's state; never leaves the central
        residual.safetensors   fp32, what encoding updates has lost so far (with a down codec)
        update.payload         what theta of the round before was updated by (with a down codec)
        generation.json        round, state hash, what the files are known by

The ledger's pointer says which one is current; a newer one is what a crash left between writing and
the pointer's flip, and is collected. What survives a crash: the one that the pointer names, and the
one before.
"""

import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pww.central.draft import MOMENTUM, RESIDUAL, SMALL_BYTES, THETA, UPDATE, Draft
from pww.codec import Codec
from pww.errors import PayloadError, StateError
from pww.folder import sync_folder, write_durably
from pww.transport.fingerprint import fingerprint
from pww.transport.tensorfile import TensorReader
from pww.wire import Count, Digest, DigestOrNone, Message, PayloadInfo

Check = Callable[[Path], str]
"""What a file is known by."""
_NAME = re.compile(r"round-(\d{6,18})\Z")


class GenerationInfo(Message):
    """`generation.json`."""

    round: Count
    state_hash: Digest
    theta: PayloadInfo
    momentum_fingerprint: Digest
    residual_fingerprint: DigestOrNone = ""  # "" without a down codec, and of theta(0)
    update: PayloadInfo | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """One complete generation on disk."""

    path: Path
    info: GenerationInfo

    @property
    def name(self) -> str:
        """What the ledger's pointer holds."""
        return self.path.name

    @property
    def theta(self) -> Path:
        """The parameters."""
        return self.path / THETA

    @property
    def momentum(self) -> Path:
        """The outer optimiser's buffer."""
        return self.path / MOMENTUM

    @property
    def residual(self) -> Path | None:
        """What sites have not been told yet of the updates; None if there is none."""
        return self.path / RESIDUAL if self.info.residual_fingerprint else None

    @property
    def update(self) -> Path:
        """The payload that made theta from that of the round before, if `info.update` is one."""
        return self.path / UPDATE


class Sound(Protocol):
    """Whether a generation is undamaged."""

    def __call__(self, *, wait: bool) -> None:
        """Returns if it is, or if that is not known yet and `wait` is false."""


class Generations:
    """The folder of all generations of a run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, name: str) -> Path:
        """Where the generation of that name is, or would be.

        Raises:
            StateError: it is not a generation's name.
        """
        if not _NAME.match(name):
            raise StateError(f"generation {name!r:.80} is not a name like round-000003")
        return self._folder / name

    def open(self, name: str) -> Generation:
        """A complete generation.

        Raises:
            StateError: it is not there or not readable: the state folder was tampered with.
        """
        path = self.path(name)
        try:
            text = (path / "generation.json").read_text()
            return Generation(path, GenerationInfo.model_validate_json(text))
        except (OSError, ValueError) as why:
            told = why if isinstance(why, OSError) else "generation.json is damaged"
            raise StateError(
                f"generation {path} is named by the ledger and cannot be read ({told}): restore "
                "the state folder from a copy, or start a new run with run.name=..."
            ) from why

    @contextmanager
    def draft(
        self, round_: int, shapes: Mapping[str, tuple[int, ...]], *, down: Codec | None = None
    ) -> Iterator[Draft]:
        """Writes the generation of `round_` in the block; it is complete and durable after it.

        One of that name that a crash left is replaced: it is not current, or its round were closed.

        Raises:
            OSError: it could not be written (disk full); nothing of it is left.
        """
        final = self._folder / f"round-{round_:06d}"
        part = final.with_name(final.name + ".part")
        for left in (part, final):
            self._remove(left)
        try:
            part.mkdir()
            draft = Draft(part, shapes, down=down)
            try:
                yield draft
                made = draft.finish()
            except BaseException:
                draft.abort()
                raise
            info = GenerationInfo(
                round=round_, state_hash=made.theta.digest, theta=made.theta, update=made.update,
                momentum_fingerprint=made.momentum, residual_fingerprint=made.residual,
            )  # fmt: skip
            write_durably(part / "generation.json", info.model_dump_json(indent=1).encode())
            part.rename(final)
            sync_folder(self._folder)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise

    def verify(self, generation: Generation) -> Sound:
        """Compares a generation's files with what was written, bit for bit.

        A small one's at once, a large one's beside, from the first question on: a thread for theta
        and one for the rest, so that a central serves while gigabytes are read. The answer is
        called to know, with `wait` for certain. The update is not looked at: whoever downloads it
        knows its digest.

        Raises:
            StateError: at once or when called, if a file is another or damaged.
        """
        info = generation.info
        checks: list[tuple[Path, str, Check]] = [
            (generation.theta, info.theta.digest, _digest),
            (generation.momentum, info.momentum_fingerprint, fingerprint),
        ]
        if generation.residual is not None:
            checks.append((generation.residual, info.residual_fingerprint, fingerprint))
        if info.theta.size_bytes <= SMALL_BYTES:
            _require(generation, [_damage(*each) for each in checks])
            return sound
        jobs: list[Future[str]] = []

        def ask(*, wait: bool) -> None:
            if not jobs:  # the first to ask is a central that serves already
                pool = ThreadPoolExecutor(2, thread_name_prefix="verify")
                jobs.extend(pool.submit(_damage, *each) for each in checks)
                pool.shutdown(wait=False)
            if wait or all(job.done() for job in jobs):
                _require(generation, [job.result() for job in jobs])

        return ask

    def refuse_orphans(self) -> None:
        """For a ledger that names no generation: there may be only a theta(0), just written.

        Raises:
            StateError: there are others; they are not touched.
        """
        newest = max((path.name for path in self._folder.glob("round-*[0-9]")), default="")
        if newest > name_of(0):
            raise StateError(
                f"{self._folder} holds {newest}, but the ledger knows of no theta: it was lost or "
                "replaced. Put it back, or start a new run with run.name=…"
            )

    def collect(self, keep: Collection[str]) -> None:
        """Removes every generation that is not in `keep`, and all parts."""
        for path in sorted(self._folder.iterdir()):
            name = path.name.removesuffix(".part")
            if _NAME.match(name) and path.name not in keep:
                self._remove(path)

    def _remove(self, path: Path) -> None:
        """A generation loses its name first, so that half of one is never taken for a whole."""
        if not path.exists():
            return
        if not path.name.endswith(".part"):
            part = path.with_name(path.name + ".part")
            shutil.rmtree(part, ignore_errors=True)
            path = path.rename(part)
        shutil.rmtree(path)


def name_of(round_: int) -> str:
    """The name of a round's generation."""
    return f"round-{round_:06d}"


def sound(*, wait: bool) -> None:
    """Nothing to wait for."""


def _require(generation: Generation, faults: Sequence[str]) -> None:
    told = "; ".join(fault for fault in faults if fault)
    if told:
        raise StateError(
            f"generation {generation.path} is damaged: {told}. Restore the state folder from a "
            "copy, or start a new run with run.name=..."
        )


def _damage(path: Path, known: str, check: Check) -> str:
    try:
        seen = check(path)
    except (OSError, PayloadError) as why:
        return str(why)
    return "" if seen == known else f"{path} has fingerprint {seen}, written was {known}"


def _digest(theta: Path) -> str:
    with TensorReader(theta) as reader:
        return reader.digest()
