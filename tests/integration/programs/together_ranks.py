"""together_ranks.py FOLDER: whole runs of two replicas in one allocation; FOLDER/codes.json.

Each run is a folder FOLDER/NAME; a name is one of `RUNS`, whose ranks end with the codes noted, or
`reference`: the same windows by two sites through a central, in one process.
"""

import errno
import gc
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Collection
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any, cast

import torch
import torch._dynamo  # FSDP2 would import it once in every rank
from forked import in_ranks
from little import Little
from tiny import SEQ_LEN, Never, Steps, TinyCorpus, tiny_config
from vision_ranks import gallery

from pww.allocate import together
from pww.central import allocation_books
from pww.central.aggregator import Aggregator
from pww.central.coordinator import Coordinator
from pww.central.draft import Draft
from pww.central.inprocess import InProcessExchange
from pww.central.ledger import FILE, Ledger
from pww.clock import SystemClock
from pww.codec import codec_named
from pww.config.load import compose
from pww.config.one_replica import of_one
from pww.config.schema import Config
from pww.errors import CheckpointError, PwwError
from pww.lease.space import BlockSpace
from pww.replica import loop
from pww.replica.groups import Allocation, join_ranks
from pww.replica.outbox import Outbox
from pww.replica.plan import PhasePlan
from pww.replica.session import Session
from pww.replica.together_disk import Checkpoints
from pww.trainer.ranks import Ranks, init_ranks
from pww.trainer.titan import TitanTrainer
from pww.trainer.titan_cpu import install
from pww.trainer.vision import VisionTrainer
from pww.transport.payload import write_theta
from pww.wire import model_digest

Engine = Callable[[Config, Allocation], Any]
CRASHED = 9


def config_of(over: dict[str, Any]) -> Config:
    """2 steps of 4 windows a phase, blocks of 4 windows; the same rate all along."""
    if over.get("model") == "resnet":
        return IMAGES
    return tiny_config(
        {
            "parallel.kind": "ddp", "diloco.replicas": 2, "parallel.ranks": 2,
            "diloco.inner_steps": 2, "darl.block_windows": 4, "optim.decay": "constant",
            "optim.warmup": 0.0, "site.name": "local", "metrics.wandb.mode": "disabled", **over,
        }
    )  # fmt: skip


def space_of(windows: int, *, targets: int = SEQ_LEN) -> BlockSpace:
    return BlockSpace(
        num_windows=windows, block_windows=4, seed=3, epochs=1, window_tokens=targets + 1,
        corpus="c" * 64,
    )  # fmt: skip


def write_seed(trainer: Any, path: Path, ranks: Ranks) -> None:
    tensors = trainer.tensors()
    if ranks.rank == 0:
        write_theta(path, tensors, trainer.shapes())
    for _ in tensors:
        pass


def train(run: Path, engine: Engine, windows: int, over: dict[str, Any]) -> None:
    """One rank of a run, to its end or its fault, which is told in RUN/said-RANK."""
    config, clock = config_of(over), SystemClock()
    run.mkdir(exist_ok=True)
    os.environ["RUN"] = str(run)
    place = join_ranks(config)
    try:
        with ExitStack() as stack:
            trainer = engine(config, place)
            stack.callback(place.parting.end)
            stack.callback(trainer.close)
            if place.replica == 0 and not (run / "checkpoints").exists():
                write_seed(trainer, run / "theta0.safetensors", place.ranks)
            targets = 1 if over.get("model") == "resnet" else SEQ_LEN
            plan = PhasePlan.of(config, space_of(windows, targets=targets))
            hand, report = together(
                config, run, place, trainer, plan=plan, clock=clock, stack=stack
            )
            loop.run(hand, trainer, report, plan=plan)
    except PwwError as fault:
        (run / f"said-{place.everyone.rank}").write_text(f"{type(fault).__name__}: {fault}")
        os._exit(fault.exit_code)


def places(folder: Path) -> None:
    """Who meets whom, as every rank of 6 in 3 replicas says it."""
    place = join_ranks(config_of({"diloco.replicas": 3, "parallel.ranks": 6}))
    rank = float(place.everyone.rank)
    told = {
        "replica": place.replica, "place": [place.inner.place, place.outer.place],
        "inner": place.inner.numbers(rank), "outer": place.outer.numbers(rank),
        "world": [place.ranks.rank, place.ranks.world], "everyone": place.everyone.most(int(rank)),
    }  # fmt: skip
    (folder / f"place-{int(rank)}.json").write_text(json.dumps(told))
    place.ranks.close()


def titan(config: Config, place: Allocation) -> TitanTrainer:
    return TitanTrainer(of_one(config), TinyCorpus(), ranks=place.ranks)


def vision(config: Config, place: Allocation) -> VisionTrainer:
    return VisionTrainer(of_one(config), gallery(), ranks=place.ranks)


def little(config: Config, place: Allocation) -> Little:
    return Little(place.ranks)


def asked(config: Config, place: Allocation) -> Little:
    """The last replica alone is asked to stop, in the middle of its second phase.

    Rank 0 notes who is gone while it says goodbye.
    """
    leave = Session.leave

    def slow(session: Session, keep: Collection[int] = ()) -> None:
        place.ranks.asked.wait()
        Event().wait(0.7)
        run = Path(os.environ["RUN"])
        (run / "gone").write_text(" ".join(path.name for path in run.glob("said-*")))
        leave(session, keep)

    if place.is_first:
        Session.leave = slow  # type: ignore[method-assign]

    def at_step(trainer: Little) -> None:
        if place.replica == place.blocks.replicas - 1 and trainer.step == 3:
            place.ranks.ask_to_stop()
        elif trainer.step >= 3:  # the first one is slow, so that it is still at it
            place.ranks.asked.wait(0.4)
            place.look()

    return Little(place.ranks, at_step=at_step)


def dying(config: Config, place: Allocation) -> Little:
    def at_step(trainer: Little) -> None:
        if place.replica == 1 and trainer.step == 3:
            os._exit(CRASHED)

    return Little(place.ranks, at_step=at_step)


class Full(Little):
    """Cannot write its second inner state."""

    def save_inner(self, folder: Path) -> None:
        if self.phases == 2 and self._ranks.rank == 0:
            raise CheckpointError(f"cannot write {folder}: No space left on device")
        super().save_inner(folder)


def full(config: Config, place: Allocation) -> Little:
    """The second replica's disk is full."""
    return Full(place.ranks) if place.replica == 1 else Little(place.ranks)


def diverging(config: Config, place: Allocation) -> Little:
    """The second replica goes to nan once, in its second phase."""
    once = [True]

    def at_step(trainer: Little) -> None:
        if place.replica == 1 and trainer.phases == 2 and once:
            once.clear()
            with torch.no_grad():
                trainer.module.bias.fill_(float("nan"))

    return Little(place.ranks, at_step=at_step)


def crash_at(
    name: str, build: Engine = little, *, of: type = allocation_books.AllocationBooks
) -> Engine:
    """Rank 0 dies instead of doing this to the books, or the disk, for the second time."""
    return at(2, of, name, lambda: os._exit(CRASHED), build)


def full_at(time: int, of: type, name: str) -> Engine:
    """The disk is full when rank 0 does this so often."""

    def refuse() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    return at(time, of, name, refuse, little)


def at(time: int, of: type, name: str, happens: Callable[[], None], build: Engine) -> Engine:
    def engine(config: Config, place: Allocation) -> Any:
        calls, real = [], getattr(of, name)

        def instead(self: Any, *args: Any, **named: Any) -> Any:
            calls.append(1)
            if len(calls) == time and place.is_first:
                happens()
            return real(self, *args, **named)

        setattr(of, name, instead)
        return build(config, place)

    return engine


IMAGES = compose(
    [
        "model=resnet_digits", "parallel=ddp", "parallel.ranks=4", "site.ranks_per_node=4",
        "diloco.replicas=2", "diloco.inner_steps=2", "diloco.recalibrate_bn=true",
        "optim.batch_windows=4", "darl.block_windows=4", "metrics.wandb.mode=disabled",
        "site.cores_per_rank=1", "site.name=local", "optim.lr=0.05",
    ]
)  # fmt: skip
RESNET = {"model": "resnet", "parallel.ranks": 4}
FSDP = {"parallel.kind": "fsdp", "parallel.ranks": 4, "parallel.shard_ranks": 4}
LOSSY = {"codec": {"kind": "int4", "feedback": True}}
RUNS: list[tuple[str, Engine, int, dict[str, Any]]] = [
    ("titan", titan, 48, {}),
    ("titan-fsdp", titan, 48, {**FSDP, "diloco.outer.device": "cpu"}),
    ("whole", little, 48, {}),
    ("of-4", little, 48, {"parallel.ranks": 4}),
    ("uneven", little, 4 * 8 + 2, {}),
    ("stopped", asked, 48, {}),
    ("stopped", little, 48, {}),
    ("crash-draft", crash_at("draft"), 48, {}),
    ("crash-draft", little, 48, {}),
    ("crash-close", crash_at("close"), 48, {}),
    ("crash-close", little, 48, {}),
    ("crash-complete", crash_at("complete", of=Checkpoints), 48, {}),
    ("crash-complete", little, 48, {}),
    ("crash-settle", crash_at("settle", of=Checkpoints), 48, {}),
    ("crash-settle", little, 48, {}),
    ("full-draft", full_at(5, Draft, "add"), 48, {}),  # two tensors a round, from 0 on
    ("full-draft", little, 48, {}),
    ("full", full, 48, {}),
    ("full", little, 48, {}),
    ("dying", dying, 48, {}),
    ("diverging", diverging, 48, {}),
    ("vision", vision, 48, RESNET),
    ("vision-crash", crash_at("draft", vision), 48, RESNET),
    ("vision-crash", vision, 48, RESNET),
    ("lossy", little, 48, LOSSY),
    ("lossy-crash", crash_at("draft"), 48, LOSSY),
    ("lossy-crash", little, 48, LOSSY),
]


def reference(folder: Path) -> None:
    """Two sites through a central: their own leases, payloads and inner states, its merge."""
    config, clock = of_one(config_of({})), SystemClock()
    plan = PhasePlan(space_of(48), 2, 4)
    init_ranks(config)
    ranks = Ranks()
    trainer = TitanTrainer(config, TinyCorpus(), ranks=ranks)
    folder.mkdir()
    ledger = Ledger(folder / FILE)
    books = Coordinator(ledger, plan.space, darl=config.darl, aggregator_port=0, clock=clock)
    merger = Aggregator(books, folder=folder, diloco=config.diloco, clock=clock)
    seed = folder / "theta0.safetensors"
    write_seed(trainer, seed, ranks)
    sites = []
    for name in ("local/a", "local/b"):
        session = Session(
            books, replica=name, node_key="", space=plan.space,
            model=model_digest(trainer.shapes()), darl=config.darl, clock=clock,
            stop=ranks.asked, versions={},
        )  # fmt: skip
        session.register()
        outbox = Outbox(folder / name, ranks=ranks, codec=codec_named("fp32"), keep=2)
        sites.append((session, outbox))
    exchange = InProcessExchange(merger, replica="local/a", seed=seed)
    theta = exchange.pull()
    while not books.exhausted():
        leases = [session.acquire(plan.num_blocks) for session, _ in sites]
        for (session, outbox), lease in zip(sites, leases, strict=True):
            assert lease is not None
            trainer.load(theta.path)
            if outbox.last is None:
                trainer.reset_inner()
            else:
                trainer.load_inner(outbox.last.inner)
            start, end = plan.progress(lease, theta)
            result = trainer.run(
                plan.windows(lease), progress=start, progress_end=end, on_step=Steps(),
                stop=Never(),
            )  # fmt: skip
            entry = outbox.put(
                trainer, theta, result, lease, run=session.run, partial=False, held_out=None
            )
            offer = entry.offer.model_copy(update={"incarnation": session.incarnation})
            assert merger.accept(offer, entry.payload) is None
        assert merger.maybe_close() is not None
        for _, outbox in sites:
            outbox.settle(merger.verdict(cast("Any", outbox.last).offer) or cast("Any", None))
        theta = exchange.pull(books.round)
    (folder / "end").write_text(str(theta.path))
    for session, outbox in sites:
        session.leave()
        outbox.close()


def main(folder: Path) -> None:
    warnings.simplefilter("error")
    install("cpu")
    config_of({})  # composed once, not in every rank
    gc.collect()
    gc.freeze()
    codes: list[tuple[str, list[int]]] = []
    codes.append(("reference", in_ranks(1, lambda: reference(folder / "reference"))))
    codes.append(("places", in_ranks(6, lambda: places(folder))))
    for name, engine, windows, over in RUNS:
        ranks = over.get("parallel.ranks", 2)
        run, began_s = folder / name, time.monotonic()
        codes.append(
            (name, in_ranks(ranks, lambda: train(run, engine, windows, over)))  # noqa: B023
        )
        (run / "seconds").write_text(str(time.monotonic() - began_s))
    (folder / "codes.json").write_text(json.dumps(codes))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
