"""A replica alone in one process: real books, merge, outbox, report, loop; a closed-form trainer.

Tests import it. As a program it puts, settles and puts again, and each time dies, or finds the disk
full, at a later file operation:

    python lone_replica.py FOLDER die|full [CODEC] [distcp|beside]

or, with `short`, may write files up to a size that grows from try to try. A codec that loses
something has error feedback. With `distcp` the inner state is saved as the engine saves it.
"""

import errno
import os
import resource
import sys
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from pww.central.audit import merged_deltas
from pww.clock import Clock, ManualClock, SystemClock
from pww.codec import codec_named
from pww.config.load import compose
from pww.config.schema import Config
from pww.connect import Start, connect
from pww.errors import CheckpointError
from pww.lease.space import BlockSpace
from pww.log import JsonLines, read_json_lines
from pww.metrics import Metrics
from pww.replica import loop
from pww.replica.durable import Durable
from pww.replica.outbox import Outbox
from pww.replica.plan import PhasePlan
from pww.replica.report import Report
from pww.rows import take_back
from pww.trainer import inner_copy, inner_state
from pww.trainer.api import EvalResult, PhaseResult
from pww.trainer.ranks import Ranks, init_ranks
from pww.transport.exchange import Theta
from pww.transport.payload import write_theta
from pww.wire import Lease, Span, Verdict, model_digest

SHAPES = {"bias": (), "empty": (0,), "weight": (3, 2)}
TOKENS = 8
"""Targets of one window."""
SPACE = BlockSpace(
    num_windows=42, block_windows=4, seed=1, epochs=1, window_tokens=TOKENS + 1, corpus="c" * 64
)
"""Eleven blocks, one of them short: five phases of two blocks, and a last one of one block."""
PLAN = PhasePlan(SPACE, inner_steps=2, batch_windows=4)
RATE = 0.1


@cache
def config() -> Config:
    """The project's configuration, with leases that fit `SPACE`."""
    return compose(
        ("darl.block_windows=4", "darl.seed=1", "diloco.inner_steps=2", "optim.batch_windows=4")
    )


def alone() -> Ranks:
    """The ranks of a process that is the only one."""
    if not dist.is_initialized():
        init_ranks(config())
    return Ranks()


def target(window: int) -> torch.Tensor:
    """What a window pulls theta to."""
    return torch.tensor([[(window * k) % 97 / 97.0 for k in (3, 5)] for _ in range(3)])


class Pull:
    """`pww.trainer.api.Trainer`: a step pulls theta to its windows' mean target.

    It has a momentum of 1/2. Phases in `nan_in` (the first is 1) leave a nan in theta and momentum.
    """

    def __init__(self, *, nan_in: tuple[int, ...] = (), batch: int = PLAN.batch_windows) -> None:
        self.clock = ManualClock()
        self.nan_in, self.batch = nan_in, batch
        self.step = self.phases = self.resets = self.evaluations = 0
        self.gathered = 0  # tensors that `tensors` handed out
        self.drawn: list[tuple[int, ...]] = []  # by phase, stopped ones too
        self.spans: list[tuple[float, float]] = []
        self.on_batch = lambda: None
        self.theta = {
            "bias": torch.tensor(1.0), "empty": torch.zeros(0), "weight": torch.zeros(3, 2)
        }  # fmt: skip
        self._forget()

    def _forget(self) -> None:
        self.momentum = {name: torch.zeros_like(value) for name, value in self.theta.items()}

    def shapes(self):
        return SHAPES

    def tensors(self):
        for name, value in self.theta.items():
            self.gathered += 1
            yield name, value.clone()

    def load(self, theta: Path) -> None:
        self.theta = load_file(theta)

    def run(self, windows, *, progress, progress_end, on_step, stop):
        start = self.clock.monotonic()
        self.spans.append((progress, progress_end))
        batches = [list(windows[i : i + self.batch]) for i in range(0, len(windows), self.batch)]
        drawn: list[int] = []
        done = 0
        while done < len(batches) and not stop.agreed():
            goal = torch.stack([target(window) for window in batches[done]]).mean(0)
            goals = {"bias": goal.mean(), "empty": torch.zeros(0), "weight": goal}
            for name in SHAPES:
                self.momentum[name] = self.momentum[name] / 2 + (self.theta[name] - goals[name])
                self.theta[name] = self.theta[name] - RATE * self.momentum[name]
            drawn += batches[done]
            done += 1
            self.step += 1
            self.clock.advance(1.0)
            on_step(
                step=self.step, done=done, of=len(batches), loss=1.0 / self.step,
                tokens=len(drawn) * TOKENS, lr=RATE,
            )  # fmt: skip
            self.on_batch()
        self.drawn.append(tuple(sorted(drawn)))
        self.phases += 1
        if self.phases in self.nan_in:
            self.momentum["weight"][2, 1] = self.theta["weight"][2, 1] = float("nan")
        return PhaseResult(
            steps=done, tokens=len(drawn) * TOKENS, loss=2.5, drawn=self.drawn[-1],
            seconds=self.clock.monotonic() - start, stopped=done < len(batches),
        )  # fmt: skip

    def expect(self, windows) -> None:
        pass

    def evaluate(self) -> EvalResult:
        self.evaluations += 1
        return EvalResult(loss=float(self.theta["weight"].double().square().mean()), tokens=100)

    def save_inner(self, folder: Path) -> None:
        self.copy_inner().write(folder)

    def copy_inner(self) -> "PullCopy":
        return PullCopy({name: value.clone() for name, value in self.momentum.items()}, self.step)

    def load_inner(self, folder: Path) -> None:
        self.momentum = load_file(folder / "momentum.safetensors")
        self.step = int((folder / "step").read_text())

    def reset_inner(self) -> None:
        self.resets += 1
        self._forget()

    def close(self) -> None:
        pass


@dataclass
class PullCopy:
    """The inner state of a `Pull`."""

    momentum: dict[str, torch.Tensor]
    step: int

    def write(self, folder: Path) -> None:
        try:
            folder.mkdir()
            save_file(self.momentum, folder / "momentum.safetensors")
            (folder / "step").write_text(str(self.step))
        except OSError as why:
            raise CheckpointError(f"{folder}: {why}") from why


class Sharded(Pull):
    """A `Pull` whose inner state is saved as the engine's: by torch.distributed.checkpoint."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__()
        self.ranks = ranks

    def __iter__(self):
        """The one optimiser of `inner_state`'s container, which this is too."""
        yield self

    @property
    def state(self) -> dict[str, torch.Tensor]:
        return self.momentum

    def state_dict(self) -> dict[str, torch.Tensor]:
        if not self.momentum:
            self._forget()
        return {f"state.{name}": value for name, value in self.momentum.items()}

    def zero_grad(self, *, set_to_none: bool) -> None:
        pass

    def save_inner(self, folder: Path) -> None:
        inner_state.save(folder, self, step=self.step, ranks=self.ranks)

    def copy_inner(self):
        return inner_copy.copied(self, step=self.step, ranks=self.ranks)

    def load_inner(self, folder: Path) -> None:
        self.step = inner_state.load(folder, self, ranks=self.ranks)


def open_outbox(run: Path, ranks: Ranks, *, codec: str, keep: int = 2) -> Outbox:
    """The outbox of a run, with error feedback where the codec loses something."""
    lossy = codec != "fp32"
    return Outbox(run, ranks=ranks, codec=codec_named(codec), keep=keep, feedback=lossy)


class Lone:
    """One process life of the replica, as `pww.worker` builds it; its run folder outlives it."""

    def __init__(
        self, run: Path, ranks: Ranks, *, trainer: Pull | None = None, keep: int = 2,
        every_rounds: int = 1, carrier=lambda exchange: exchange, space: BlockSpace = SPACE,
        codec: str = "fp32",
    ) -> None:  # fmt: skip
        run.mkdir(exist_ok=True)
        self.run, self.ranks = run, ranks
        self.trainer = trainer or Pull()
        self.plan = PhasePlan(space, PLAN.inner_steps, PLAN.batch_windows)
        self.outbox = open_outbox(run, ranks, codec=codec, keep=keep)
        seed = run / "theta0.safetensors"
        if self.outbox.last is None:
            write_theta(seed, self.trainer.tensors(), SHAPES)
        else:
            self.trainer.load_inner(self.outbox.last.inner)
        held = self.outbox.residual
        tag = "" if held is None else held.offer.delta
        start = Start(space, model_digest(SHAPES), seed, self.outbox.last, tag)
        self.ends = connect(config(), run, start, clock=SystemClock(), stop=ranks.asked)
        self.exchange = carrier(self.ends.exchange)
        last = self.outbox.last
        left = take_back(run / "metrics.jsonl", after=0 if last is None else last.step)
        self.metrics = Metrics(
            run, project="pww", group="g", name="n", wandb_id="id", mode="disabled", config={}
        )
        self.report = Report(
            run, metrics=self.metrics, outbox=self.outbox, plan=self.plan,
            every_rounds=every_rounds, clock=self.trainer.clock, left=left,
        )  # fmt: skip

    def train(self, *, clock: Clock = SystemClock(), overlap: bool = False) -> None:
        """THE loop, to its end; lets go of everything, whatever happens."""
        try:
            hand = Durable(
                self.ends.session, self.exchange, self.outbox, self.report,
                plan=self.plan, ranks=self.ranks, clock=clock, overlap=overlap,
            )  # fmt: skip
            loop.run(hand, self.trainer, self.report, plan=self.plan)
        finally:
            self.close()

    def close(self) -> None:
        pending = self.outbox.pending
        self.report.close()
        self.metrics.close()
        self.outbox.close()
        self.ends.close(() if pending is None else tuple(s.lease for s in pending.offer.spans))


def drawn_for_merged(run: Path) -> Counter[int]:
    """How often each window is in theta, by the run's own draw log."""
    _, merged = merged_deltas(run)
    drawn: Counter[int] = Counter()
    for row in read_json_lines(run / "draws.jsonl"):
        if row["delta"] in merged:
            drawn.update(row["windows"])  # type: ignore[call-overload]
    return drawn


# ----------------------------------------------------------------------------- as a program

LEASES = [Lease(id=i, replica="local/a", span=Span(2 * i, 2 * i + 2), watermark=22, ttl_s=9.0)
          for i in range(3)]  # fmt: skip


class NoSteps:
    """A step hook that is not interested."""

    def __call__(self, **_: object) -> None:
        pass


class Never:
    """A stop that nobody asks for."""

    def agreed(self) -> bool:
        return False


def put_one(outbox: Outbox, trainer: Pull, theta: Theta, lease: Lease, *, beside: bool = False):
    """One phase and its entry, durable, without books."""
    trainer.load(theta.path)
    result = trainer.run(
        PLAN.windows(lease), progress=0.0, progress_end=0.1, on_step=NoSteps(), stop=Never()
    )
    entry = outbox.put(
        trainer, theta, result, lease, run="a" * 32, partial=False, held_out=None, beside=beside
    )
    outbox.saved()
    return entry


def theta_in(folder: Path, round_: int = 0) -> Theta:
    """A published theta of some values."""
    folder.mkdir(exist_ok=True)
    path = folder / f"theta{round_}.safetensors"
    values = {"bias": 0.3 + round_, "empty": 0.0, "weight": 1 / 3 - round_}
    tensors = [(name, torch.full(shape, values[name])) for name, shape in SHAPES.items()]
    write_theta(path, tensors, SHAPES)
    return Theta(round_, path, "f" * 64, None, 0)


def three_phases(run: Path, say, arm, codec: str, inner: str) -> None:
    """Put, settle, `arm`, put, settle, put; says what is promised to be durable by then."""
    theta, ranks = theta_in(run.parent / f"{run.name}-theta"), alone()
    trainer = Pull() if inner == "plain" else Sharded(ranks)
    outbox = open_outbox(run, ranks, codec=codec)
    for lease in LEASES:
        if lease is LEASES[1]:
            arm()
        entry = put_one(outbox, trainer, theta, lease, beside=inner == "beside")
        say(f"put {entry.offer.delta}")
        if lease is not LEASES[-1]:
            outbox.settle(Verdict(delta=entry.offer.delta, outcome="merged", round=lease.id + 1))
            say(f"settled {entry.offer.delta}")


class Trap:
    """Acts at the n-th file operation after `arm`, just before a name or bytes change.

    An act that returns or raises is repeated at every later one, as a full disk does.
    """

    CHANGES = ("os.mkdir", "os.rename", "os.truncate")
    REMOVES = ("os.remove", "os.rmdir")

    def __init__(self, act, *, removals: bool) -> None:
        self._act, self._left = act, 0
        self._events = self.CHANGES + (self.REMOVES if removals else ())
        os.write, os.fsync = self._before(os.write), self._before(os.fsync)
        JsonLines.write = self._before(JsonLines.write)  # writes past `os`
        inner_state._Raw.write = self._before(inner_state._Raw.write)
        sys.addaudithook(self._hook)

    def arm(self, number: int) -> None:
        self._left = number

    def _count(self) -> None:
        if self._left > 1:
            self._left -= 1
        elif self._left == 1:
            self._act()

    def _before(self, function):
        def counted(*args, **more):
            self._count()
            return function(*args, **more)

        return counted

    def _hook(self, event: str, args) -> None:
        writes = (
            event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
        )
        if writes or event in self._events:
            self._count()


def _die() -> None:
    os._exit(9)


def _full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def child(run: Path, how: str, number: int, codec: str, inner: str) -> int:
    """What one child does, and its exit code; `RUN.said` notes what was promised by its end."""
    said = os.open(run.with_name(f"{run.name}.said"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    write = os.write
    os.fsync = lambda handle: None  # a kernel that lives on needs none, and hundreds take minutes

    def say(text: str) -> None:
        may_write = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (may_write[1], may_write[1]))
        write(said, f"{text}\n".encode())
        resource.setrlimit(resource.RLIMIT_FSIZE, may_write)

    def arm() -> None:
        match how:
            case "die":
                Trap(_die, removals=True).arm(number)
            case "full":
                Trap(_full, removals=False).arm(number)
            case "short":
                most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
                resource.setrlimit(resource.RLIMIT_FSIZE, (100 * (number - 1), most))

    try:
        three_phases(run, say, arm, codec, inner)
    except CheckpointError as fault:
        say(f"fault {fault}")
        return 3
    return 0


def main(folder: Path, how: str, codec: str = "fp32", inner: str = "plain") -> None:
    """A child for each point, until one gets through."""
    torch.set_num_threads(1)
    sys.dont_write_bytecode = True  # only what is under test writes
    config()
    for number in range(1, 1000):
        run = folder / f"{number:03d}"
        run.mkdir()
        process = os.fork()  # nothing has started a thread yet
        if process == 0:
            os._exit(child(run, how, number, codec, inner))
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        print(number, code, flush=True)
        if code == 0:
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
