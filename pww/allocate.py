"""Builds what the replicas of one allocation train with: their groups' outer loop, and its books.

As `pww.connect` for one replica: the only place that knows the replicas' side and the books', whose
coordinator, ledger and generations are in the process of rank 0, their state in the run's folder.
"""

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pww.clock import Clock
from pww.codec import codec_named
from pww.config.schema import Config
from pww.connect import Start, metrics_of, session_of
from pww.replica.collective import Collective
from pww.replica.entry import unsent
from pww.replica.gauges import Hardware, Meters
from pww.replica.groups import Allocation
from pww.replica.plan import PhasePlan
from pww.replica.report import Report
from pww.replica.session import Session
from pww.replica.together import Books, Together
from pww.replica.together_disk import Checkpoints, inner_of
from pww.rows import Left
from pww.trainer.api import Live, Trainer
from pww.wire import model_digest

if TYPE_CHECKING:
    import torch

    from pww.central.allocation_books import AllocationBooks


def together(
    config: Config,
    run: Path,
    place: Allocation,
    trainer: Trainer,
    *,
    plan: PhasePlan,
    clock: Clock,
    stack: ExitStack,
) -> tuple[Together, Report]:
    """The hand of `diloco.replicas` and what it reports to. Collective over all ranks.

    What is opened is closed by `stack`.

    Raises:
        CheckpointError: the newest checkpoint cannot be read.
        StateError: the run's state cannot be.
    """
    stack.push(place.parting.wait)
    disk = Checkpoints(run, keep=config.checkpoint.keep, is_first=place.is_first)
    stack.callback(disk.close)
    if disk.last is not None:
        trainer.load_inner(inner_of(disk.last.folder, place.replica))
    seed = run / "theta0.safetensors"
    built: list[tuple[Session, AllocationBooks]] = []
    if place.is_first:
        start = Start(plan.space, model_digest(trainer.shapes()), seed, disk.last)

        def open_books() -> None:
            built.append(_books(config, run, start, stack, clock=clock, stop=place.ranks.asked))

        place.everyone.share(open_books)
    else:
        place.everyone.share(bool)
    collective = collective_of(config, place, trainer, clock=clock)
    metrics, left = None, Left()
    if built:
        session = built[0][0]
        step = 0 if disk.last is None else disk.last.step
        metrics, left = metrics_of(config, run, group=session.run, step=step)
        stack.callback(metrics.close)
        stack.callback(lambda: session.leave(unsent(disk.pending)))
    report = Report(
        run, metrics=metrics, outbox=disk, plan=plan,
        every_rounds=config.evaluation.every_rounds, clock=clock,
        meters=Meters(Hardware.of(config), clock=clock), left=left,
    )  # fmt: skip
    stack.callback(report.close)
    hand = Together(
        place, collective,
        # only rank 0 of all reaches these two
        cast("Session", built and built[0][0]), cast("Books", built and built[0][1]),
        disk, report, plan=plan, clock=clock,
    )  # fmt: skip
    return hand, report


def collective_of(
    config: Config, place: Allocation, trainer: Trainer, *, clock: Clock
) -> Collective:
    """The outer loop of the trainer's model between these replicas. Collective over all ranks."""
    name = config.codec.name
    return Collective(
        cast("Live", trainer).module, inner=place.inner, outer=place.outer,
        diloco=config.diloco, clock=clock, codec=None if name == "fp32" else codec_named(name),
        feedback=config.codec.feedback, device=_device(config),
    )  # fmt: skip


def _books(
    config: Config, run: Path, start: Start, stack: ExitStack, *, clock: Clock,
    stop: threading.Event,
) -> "tuple[Session, AllocationBooks]":  # fmt: skip
    from pww.central.allocation_books import AllocationBooks
    from pww.central.coordinator import Coordinator
    from pww.central.ledger import FILE, Ledger

    state = run / "central"
    state.mkdir(exist_ok=True)
    ledger = Ledger(state / FILE)
    stack.callback(ledger.close)
    books = Coordinator(
        ledger, start.space, darl=config.darl, aggregator_port=0, clock=clock,
        staleness_window=config.diloco.staleness_window,
    )  # fmt: skip
    # The run folder is locked: an earlier process of this allocation, however it ended, is dead.
    books.evict(config.replica_id)
    session = session_of(
        books, config, start, darl=config.darl.model_copy(update={"ahead": False}), node_key="",
        clock=clock, stop=stop,
    )  # fmt: skip
    session.register()
    allocation = AllocationBooks(books, state)
    last = start.last
    pending = last.offer.delta if last is not None and last.verdict is None else ""
    allocation.open(start.seed, pending=pending)
    return session, allocation


def _device(config: Config) -> "torch.device | None":
    import torch

    return torch.device("cpu") if config.diloco.outer.device == "cpu" else None
