"""`python -m pww.central replay`: the outer log of a run once more, with or without some of it.

From theta(0) and the kept deltas, with the run's own merge: what comes out without leaving anything
out is the run's theta, bit for bit, or the books are wrong. With deltas left out it answers what
the run would have been without them, as far as the outer loop goes: the other deltas stay what they
were, although their sites would have started from another theta.
"""

import math
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from pww.central.audit import reading
from pww.central.final import publish_final
from pww.central.generations import Generation, Generations, name_of
from pww.central.kept import FOLDER, Kept, KeptRound
from pww.central.merge import merge_finite, shapes_of
from pww.central.screening import StagedPayload, one_thread, screen, square_sum
from pww.central.theta0 import write_theta0
from pww.codec import codec_named
from pww.errors import StateError
from pww.transport.fingerprint import PIECE
from pww.transport.payload import EXACT
from pww.transport.tensorfile import TensorReader
from pww.wire import PayloadInfo, model_digest

_NAME = r"[a-z0-9][a-z0-9._-]*"
_CUT = re.compile(rf"({_NAME})(?:/({_NAME}))?@([0-9]{{1,12}})\Z")


@dataclass(frozen=True, slots=True)
class Cut:
    """A contribution to leave out: `site/replica@round`, or a whole site's, `site@round`."""

    site: str
    replica: str  # "" for all of the site's
    round: int

    @classmethod
    def parse(cls, text: str) -> "Cut":
        """Reads one.

        Raises:
            StateError: it is not of that form.
        """
        match = _CUT.match(text)
        if match is None:
            raise StateError(
                f"--without {text!r:.80}: a contribution is site/replica@round or site@round, such "
                "as lumi/a@12"
            )
        return cls(match[1], match[2] or "", int(match[3]))

    def __str__(self) -> str:
        whose = f"{self.site}/{self.replica}" if self.replica else self.site
        return f"{whose}@{self.round}"

    def takes(self, replica: str) -> bool:
        """Whether it is a contribution of `replica`."""
        return replica == f"{self.site}/{self.replica}" or (
            not self.replica and replica.split("/")[0] == self.site
        )


@dataclass(frozen=True, slots=True)
class Replayed:
    """The outcome; `distance` is relative: L2 of the difference over that of the run's theta."""

    theta: Path
    state_hash: str
    real_state_hash: str
    distance: float
    whole: bool  # nothing was left out

    @property
    def ok(self) -> bool:
        """False if a whole replay is not the run."""
        return not self.whole or self.state_hash == self.real_state_hash

    def render(self) -> str:
        """The outcome for people."""
        same = self.state_hash == self.real_state_hash
        words = "the run's theta, bit for bit" if same else "not the run's theta"
        return (
            f"state hash {self.state_hash}: {words}\n"
            f"relative L2 distance to the run's theta {self.distance:.6g}"
        )


def replay(run: Path, cuts: Sequence[Cut], *, say: Callable[[str], None]) -> Replayed:
    """Merges the run in `run` again without `cuts`; theta goes to `run/replay-…/final`.

    `say` hears a line a round.

    Raises:
        StateError: the run was not kept, a cut names nothing that was merged, or a file is damaged.
        OSError: the disk refused.
    """
    state = run / "central"
    hashes = _state_hashes(run)
    rounds = max(hashes)
    kept = Kept(state)
    if not kept.theta0.is_file():
        raise StateError(
            f"run {run} did not keep its deltas ({state / FOLDER} has no theta(0)): a replay needs "
            "a run that was started with central.keep_deltas=true"
        )
    log = [kept.round(number) for number in range(1, rounds + 1)]
    _refuse_empty(cuts, [record for record, _ in log])
    folder = run / ("replay-" + ("without-" + _file_name(cuts) if cuts else "whole"))
    shutil.rmtree(folder, ignore_errors=True)
    work = Generations(folder / "work")
    current = _theta0(kept, work, hashes[0])
    say(_line(0, current.info.state_hash, hashes[0], merged=0, left_out=0))
    for record, deltas in log:
        stay = [each for each in deltas if not _is_cut(each.replica, record.round, cuts)]
        if stay:
            current = _round(work, current, record, stay, folder=kept.folder)
        say(
            _line(
                record.round, current.info.state_hash, hashes[record.round],
                merged=len(stay), left_out=len(deltas) - len(stay),
            )
        )  # fmt: skip
    real = Generations(state / "generations").open(name_of(rounds))
    distance = _distance(current.theta, real.theta)
    theta = publish_final(current, folder)
    shutil.rmtree(folder / "work")
    return Replayed(theta, current.info.state_hash, hashes[rounds], distance, whole=not cuts)


def _state_hashes(run: Path) -> dict[int, str]:
    with reading(run) as ledger:
        rows = ledger.rows("SELECT round, state_hash FROM rounds ORDER BY round")
    if not rows:
        raise StateError(f"run {run} has no theta(0) yet: there is nothing to replay")
    return {int(str(number)): str(digest) for number, digest in rows}


def _refuse_empty(cuts: Sequence[Cut], records: Sequence[KeptRound]) -> None:
    for cut in cuts:
        here = next((record for record in records if record.round == cut.round), None)
        if here is None:
            raise StateError(f"--without {cut}: the run merged rounds 1 to {len(records)}")
        who = [delta.replica for delta in here.deltas]
        if not any(cut.takes(replica) for replica in who):
            raise StateError(
                f"--without {cut}: round {cut.round} merged {', '.join(sorted(set(who)))} only"
            )


def _theta0(kept: Kept, work: Generations, state_hash: str) -> Generation:
    """theta(0) as the ledger knows it: its file's digest is its state hash."""
    with TensorReader(kept.theta0) as reader:
        shapes = {name: reader.shape(name) for name in reader.names}
        info = PayloadInfo(codec=EXACT, size_bytes=reader.size_bytes, digest=state_hash)
    return write_theta0(work, kept.theta0, info=info, model=model_digest(shapes))


def _round(
    work: Generations,
    base: Generation,
    record: KeptRound,
    deltas: Sequence[StagedPayload],
    *,
    folder: Path,
) -> Generation:
    """One merge; rounds that are void here leave gaps, so that numbers stay the run's."""
    with screen(deltas, shapes_of(base), known={}) as screened:
        result, screened = merge_finite(
            base, screened, generations=work, diloco=record.diloco, number=record.round,
            down=codec_named(record.down) if record.down else None,
        )  # fmt: skip
    if screened.excluded or result is None:
        one = screened.excluded[0]
        raise StateError(
            f"round {record.round}: delta {one.delta} of {one.replica} cannot be merged again "
            f"({one.reason}): restore {folder} from a copy"
        )
    work.collect(keep={name_of(record.round)})
    return work.open(name_of(record.round))


def _is_cut(replica: str, number: int, cuts: Sequence[Cut]) -> bool:
    return any(cut.round == number and cut.takes(replica) for cut in cuts)


def _distance(ours: Path, theirs: Path) -> float:
    """Relative L2 distance of two files of the same tensors."""
    between = length = 0.0
    buffers = torch.empty(2, PIECE)
    with one_thread(), TensorReader(ours) as a, TensorReader(theirs) as b:
        for name in b.names:
            for start in range(0, b.size(name), PIECE):
                size = min(PIECE, b.size(name) - start)
                x, y = buffers[0][:size], buffers[1][:size]
                a.read(name, x, start=start)
                b.read(name, y, start=start)
                length += square_sum(y)
                between += square_sum(x.sub_(y))
    return math.sqrt(between / length) if length else math.sqrt(between)


def _file_name(cuts: Sequence[Cut]) -> str:
    return ",".join(sorted(str(cut).replace("/", ".") for cut in cuts))[:100]


def _line(number: int, ours: str, real: str, *, merged: int, left_out: int) -> str:
    same = "the run's" if ours == real else f"the run's was {real[:16]}"
    rest = f", {left_out} left out" if left_out else ""
    return f"round {number}: {merged} merged{rest}, state {ours[:16]} ({same})"
