"""`python -m pww.worker RUN`: one rank of the run in folder RUN; `pww.train` starts it.

It reads RUN/config.yaml, builds the pieces and calls `replica.loop.run`. Exit codes: 0 the corpus
is exhausted, 1 a fault (its sentence is the last line), 130 stopped and resumable.
"""

import logging
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pww import log as pww_log
from pww.clock import Clock, SystemClock
from pww.config import paths
from pww.config.load import read_config
from pww.config.schema import Config, Images, Slurm
from pww.engine import Engine, opened, torchtitan
from pww.errors import CheckpointError, DataError, PwwError, Stopped
from pww.folder import owned, write_durably
from pww.launcher import lives
from pww.launcher.process import die_with_parent
from pww.trainer import place, signals

if TYPE_CHECKING:
    from pww.codec import Codec
    from pww.replica.groups import Allocation
    from pww.replica.hand import Hand
    from pww.replica.plan import PhasePlan
    from pww.replica.report import Report
    from pww.replica.session import Session
    from pww.trainer.api import Trainer
    from pww.trainer.ranks import Ranks
    from pww.transport.exchange import Exchange

log = logging.getLogger("pww.worker")


def main(argv: list[str], *, engine: Engine = torchtitan) -> int:
    """Runs one rank and returns its exit code; `engine` builds the inner loop."""
    if len(argv) != 1 or not Path(argv[0], "config.yaml").is_file():
        print("usage: python -m pww.worker RUN   (a folder that pww.train made)", file=sys.stderr)
        return 2
    signals.defer()
    if "RANK" in os.environ:
        die_with_parent()  # no rank outlives the launcher that would have to tell the others
    run = Path(argv[0]).resolve()
    try:
        rank = place.found(os.environ).rank
        config = read_config(run / "config.yaml")
    except PwwError as fault:
        print(fault, file=sys.stderr)
        return fault.exit_code
    pww_log.setup(rank=rank, label=config.replica_id if config.central.url != "none" else "")
    try:
        with ExitStack() as stack:
            if rank == 0:
                remedy = "wait for it, or start another run with its own run.name"
                stack.enter_context(owned(run, remedy=remedy))
                if isinstance(config.site.queue, Slurm):
                    lives.begin(run)
            _train(config, run, stack, engine)
    except KeyboardInterrupt:  # before our own handlers were there
        log.error("stopped before training began")
        log.info("go on with: python -m pww.train resume=%s", run)
        return Stopped.exit_code
    except OSError as fault:
        log.error("the run cannot go on: %s; make room or mend the folder, then resume it", fault)
        return 1
    except RuntimeError as fault:
        from torch import OutOfMemoryError

        from pww.trainer.memory import no_room

        if not isinstance(fault, OutOfMemoryError):
            raise
        log.error(
            "rank %d: %s, and the run cannot go on; all phases before this one are intact: make "
            "room, go on with more ranks (parallel.ranks=…), or start a run that needs less "
            "(optim.accumulate, parallel.activation_checkpoint=full)", rank, no_room(fault),
        )  # fmt: skip
        log.info("go on with: python -m pww.train resume=%s", run)
        return 1
    except PwwError as fault:
        if isinstance(fault, Stopped) and signals.queue_asked():
            _leave_marker(run, config)
        if rank == 0:
            log.error("%s", fault)
            if isinstance(fault, Stopped | CheckpointError):
                log.info("go on with: python -m pww.train resume=%s", run)
        return fault.exit_code
    return 0


def _train(config: Config, run: Path, stack: ExitStack, engine: Engine) -> None:
    """Builds one rank's pieces, in the order of the data's way, and runs the loop over them."""
    from pww.lease.space import BlockSpace
    from pww.replica import loop
    from pww.replica.groups import join_ranks
    from pww.replica.plan import PhasePlan

    clock = SystemClock()
    log.info("%s: loading the engine, then %s", config.replica_id, config.data.name)
    place = join_ranks(config)
    stack.callback(place.parting.end)
    stack.callback(place.ranks.close)
    place.ranks.handle_signals()

    facts, make = opened(config, place, engine=engine)
    space = BlockSpace.of(facts, config.darl)
    plan = PhasePlan.of(config, space)
    if space.num_blocks < plan.num_blocks:
        raise DataError(
            f"corpus {config.data.name} has {space.num_windows} windows, less than one phase of "
            f"diloco.inner_steps={config.diloco.inner_steps} x optim.batch_windows="
            f"{config.optim.batch_windows}{_times(config)}: lower one of them"
            f"{_or_more_text(config)}"
        )
    trainer = make()
    stack.callback(trainer.close)
    build = _alone if config.diloco.replicas == 1 else _together
    hand, report = build(config, run, place, trainer, plan=plan, clock=clock, stack=stack)
    loop.run(hand, trainer, report, plan=plan)
    report.close()
    if place.is_first:
        summary = report.summary(ended=f"corpus {config.data.name} is exhausted")
        try:
            write_durably(run / paths.FINISHED, f"{summary}\n".encode())
        except OSError as why:
            raise CheckpointError(
                f"cannot write {run / paths.FINISHED}: {why}; all is trained, make room and start "
                "again to note it"
            ) from why
        print(summary, flush=True)


def _times(config: Config) -> str:
    k = config.diloco.replicas
    return f" x diloco.replicas={k}" if k > 1 else ""


def _or_more_text(config: Config) -> str:
    """What else helps: most who meet this asked for few windows to try something quickly."""
    data = config.data
    asked = 0 if isinstance(data, Images) else data.max_windows
    return f", or raise data.max_windows={asked}" if asked else ""


def _alone(
    config: Config, run: Path, place: "Allocation", trainer: "Trainer", *, plan: "PhasePlan",
    clock: Clock, stack: ExitStack,
) -> "tuple[Hand, Report]":  # fmt: skip
    """One replica: an outbox, and both ends of its exchange."""
    from pww.codec import codec_named
    from pww.connect import Ends, Start, connect, metrics_of
    from pww.replica.crew import crew_of
    from pww.replica.durable import Durable
    from pww.replica.entry import unsent
    from pww.replica.gauges import Hardware, Meters
    from pww.replica.outbox import Outbox
    from pww.replica.report import Report
    from pww.rows import Left
    from pww.wire import model_digest

    ranks, codec = place.ranks, codec_named(config.codec.name)
    stack.push(place.parting.wait)
    outbox = Outbox(
        run, ranks=ranks, codec=codec, keep=config.checkpoint.keep, feedback=config.codec.feedback
    )
    stack.callback(outbox.close)
    if outbox.last is not None:
        trainer.load_inner(outbox.last.inner)
    seed = run / "theta0.safetensors"
    if outbox.last is None:
        _write_seed(trainer, seed, ranks)

    start = Start(
        plan.space, model_digest(trainer.shapes()), seed, outbox.last,
        "" if outbox.residual is None else outbox.residual.offer.delta,
    )  # fmt: skip
    built: list[Ends] = []
    crew = crew_of(config, ranks, run=run, clock=clock, stack=stack)

    def join() -> None:
        built.append(connect(config, run, start, clock=clock, stop=ranks.asked, crew=crew))

    ranks.share(join)
    ends = built[0] if built else None
    carriage = ranks.local(lambda: built[0].carriage)
    if carriage is not None:
        if carriage.codec != codec.name:
            log.info("deltas travel as %s: the central's codec, not %s", carriage.codec, codec.name)
        codec = codec_named(carriage.codec)
        outbox.encode_with(codec, feedback=carriage.feedback)
    if ranks.rank == 0:
        log.info("a delta is %.1f MB as %s", _megabytes(trainer, codec), codec.name)
    metrics, left = None, Left()
    if ends is not None:
        step = 0 if outbox.last is None else outbox.last.step
        metrics, left = metrics_of(config, run, group=ends.session.run, step=step)
        stack.callback(metrics.close)
        # the goodbye first: wandb may be slow
        stack.callback(lambda: ends.close(unsent(outbox.pending)))
    report = Report(
        run, metrics=metrics, outbox=outbox, plan=plan, every_rounds=config.evaluation.every_rounds,
        clock=clock, counts=None if ends is None else ends.counts,
        meters=None if ends is None else Meters(
            Hardware.of(config), clock=clock, transfers=ends.transfers, sent=ends.sent
        ),
        left=left,
    )  # fmt: skip
    stack.callback(report.close)
    hand = Durable(
        # only rank 0's share() reaches these two
        cast("Session", ends and ends.session), cast("Exchange", ends and ends.exchange),
        outbox, report, plan=plan, ranks=ranks, clock=clock, overlap=config.diloco.overlap,
    )  # fmt: skip
    return hand, report


def _together(
    config: Config, run: Path, place: "Allocation", trainer: "Trainer", *, plan: "PhasePlan",
    clock: Clock, stack: ExitStack,
) -> "tuple[Hand, Report]":  # fmt: skip
    """Several replicas, which exchange among themselves."""
    from pww.allocate import together
    from pww.codec import codec_named

    is_new = not any((run / "checkpoints").glob("phase-??????"))
    if place.everyone.most(int(is_new)) and place.replica == 0:
        _write_seed(trainer, run / "theta0.safetensors", place.ranks)
    if place.is_first:
        codec = codec_named(config.codec.name)
        log.info("a delta is %.1f MB as %s", _megabytes(trainer, codec), codec.name)
    return together(config, run, place, trainer, plan=plan, clock=clock, stack=stack)


def _megabytes(trainer: "Trainer", codec: "Codec") -> float:
    return sum(codec.size_bytes(tuple(shape)) for shape in trainer.shapes().values()) / 1e6


def _leave_marker(run: Path, config: Config) -> None:
    """For the batch script, which queues the job again: any rank may have been told first."""
    if lives.is_stuck(run):
        log.error(
            "the job is not queued again: %s jobs in a row ended without one phase of "
            "diloco.inner_steps=%s; resume it with a longer site.queue.time, or start a run with "
            "shorter phases",
            lives.LIVES,
            config.diloco.inner_steps,
        )
        return
    try:
        (run / paths.REQUEUE).touch()
    except OSError as why:
        log.error("the job will not be queued again: %s", why)


def _write_seed(trainer: "Trainer", path: Path, ranks: "Ranks") -> None:
    """theta(0) as this replica would start it, in case the central asks for it. Collective."""
    from pww.transport.payload import write_theta

    tensors = trainer.tensors()
    fault: PwwError | None = None
    if ranks.rank == 0:
        try:
            write_theta(path, tensors, trainer.shapes())
        except OSError as why:
            fault = CheckpointError(f"cannot write {path}: {why}; make room and start again")
    for _ in tensors:
        pass
    ranks.agree_on_fault(fault)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # gloo's threads can abort an interpreter that tears itself down; all that is durable is on disk
    os._exit(code)
