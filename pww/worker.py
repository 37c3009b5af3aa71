"""`python -m pww.worker RUN`: one rank of the run whose folder is RUN; `pww.train` and the queue start it.

It reads RUN/config.yaml, builds the pieces and calls `replica.loop.run`. Exit codes: 0 the corpus is exhausted,
1 a fault (its sentence is the last line), 130 stopped and resumable.
"""

import logging
import os
import sys
import threading
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pww import log as pww_log
from pww.clock import SystemClock
from pww.config import paths
from pww.config.load import read_config
from pww.config.schema import Config
from pww.errors import ConfigError, DataError, PwwError, Stopped
from pww.folder import owned, write_durably

log = logging.getLogger("pww.worker")


def main(argv: list[str]) -> int:
    """Runs one rank and returns its exit code."""
    if len(argv) != 1 or not Path(argv[0], "config.yaml").is_file():
        print("usage: python -m pww.worker RUN   (a folder that pww.train made)", file=sys.stderr)
        return 2
    run = Path(argv[0]).resolve()
    rank = int(os.environ.get("RANK", "0"))
    try:
        config = read_config(run / "config.yaml")
    except ConfigError as fault:
        print(fault, file=sys.stderr)
        return fault.exit_code
    label = config.replica_id if config.central.url != "none" else ""
    pww_log.setup(rank=rank, label=label)
    try:
        with ExitStack() as stack:
            if rank == 0:
                stack.enter_context(
                    owned(run, remedy="wait for it, or start another run with its own run.name")
                )
            _train(config, run)
    except PwwError as fault:
        if rank == 0:
            log.error("%s", fault)
            if isinstance(fault, Stopped):
                log.info("go on with: python -m pww.train resume=%s", paths.shown(run))
        return fault.exit_code
    return 0


def _train(config: Config, run: Path) -> None:
    from pww.codec import get_codec
    from pww.data import prepare
    from pww.lease.space import BlockSpace
    from pww.metrics import Metrics
    from pww.replica.loop import run as run_loop
    from pww.replica.outbox import Outbox
    from pww.replica.plan import PhasePlan
    from pww.replica.report import Report
    from pww.trainer.ranks import Ranks
    from pww.trainer.titan import TitanTrainer, init_ranks
    from pww.wire import model_digest

    init_ranks(config)
    ranks = Ranks()
    ranks.handle_signals()
    clock = SystemClock()

    def corpus_of() -> object:
        prepare(
            config.data,
            seq_len=config.model.seq_len,
            vocab_multiple=config.model.vocab_multiple,
            project=paths.PROJECT,
        )
        return None

    ranks.share(corpus_of)
    corpus = prepare(
        config.data,
        seq_len=config.model.seq_len,
        vocab_multiple=config.model.vocab_multiple,
        project=paths.PROJECT,
    )
    space = BlockSpace.of(corpus.manifest, config.darl)
    plan = PhasePlan.of(config, space)
    if space.num_blocks < plan.num_blocks:
        raise DataError(
            f"corpus {config.data.name} has {space.num_windows} windows, less than one phase of "
            f"{config.diloco.inner_steps} steps x {config.optim.batch_windows} windows: lower "
            "diloco.inner_steps or optim.batch_windows"
        )
    trainer = TitanTrainer(config, corpus, ranks=ranks)
    outbox = Outbox(run, ranks=ranks, codec=get_codec(config.codec.kind), keep=config.checkpoint.keep)
    if outbox.last is not None:
        trainer.load_inner(outbox.last.inner)
    seed = _write_seed(trainer, run, ranks)
    ends = None
    metrics = None
    if ranks.rank == 0:
        metrics = Metrics(
            run,
            project=config.metrics.wandb.project,
            group=config.run.name,
            name=f"{config.run.name}-{config.replica_id.replace('/', '-')}",
            wandb_id=_wandb_id(run),
            mode=config.metrics.wandb.mode,
            config=config.model_dump(mode="json"),
        )
    report = Report(
        run, metrics=metrics, outbox=outbox, plan=plan,
        every_rounds=config.evaluation.every_rounds, clock=clock,
    )  # fmt: skip
    try:
        ends = ranks.share(lambda: None)
        if ranks.rank == 0:
            pass
    finally:
        report.close()
    del ends, run_loop, space, seed, model_digest, threading, PackageNotFoundError, version, write_durably
