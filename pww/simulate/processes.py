"""The processes of `python -m pww.simulate`: a real central and real sites whose work is a sleep.

Leases, heartbeats, Flower, outbox, merge and ledger are those of production; what is missing is the
corpus (there is only its manifest) and the network that is trained (one tensor of one
element).
Everything heavy is imported here, once: the children are forked from a server that has it.
"""

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file

from pww import log as pww_log
from pww.central import merging as merging  # for the server to have it loaded
from pww.central.coverage import BATCHES
from pww.central.service import serve
from pww.clock import SystemClock
from pww.codec import codec_named
from pww.config import paths
from pww.config.load import read_config
from pww.config.paths import CONFIG_FILE
from pww.connect import Start, connect
from pww.data.manifest import read_manifest
from pww.errors import PwwError
from pww.federation.fleet import FleetSite as FleetSite  # for the server to have it loaded
from pww.launcher.process import die_with_parent
from pww.lease.space import BlockSpace
from pww.log import JsonLines
from pww.metrics import Metrics
from pww.replica import loop
from pww.replica.durable import Durable
from pww.replica.federated import FederatedExchange as FederatedExchange
from pww.replica.outbox import Outbox
from pww.replica.plan import PhasePlan
from pww.replica.report import Report
from pww.simulate.plan import WINDOW_TOKENS
from pww.trainer.api import EvalResult, PhaseResult, StepHook, Stop
from pww.trainer.ranks import Ranks, init_ranks
from pww.transport.payload import write_theta
from pww.wire import model_digest

log = logging.getLogger("pww.simulate")


def central(folder: Path) -> None:
    """A process: coordinator and aggregator, until every block is in and all sites have left."""
    _be("central", folder, partial(_central, folder))


def site(folder: Path, windows_per_s: float) -> None:
    """A process: one replica that works at that speed, until every block is in."""
    _be(folder.name, folder, partial(_site, folder, windows_per_s))


def _be(label: str, folder: Path, work: "partial[None]") -> None:
    """Runs `work` as a process of its own: own group, own log; ends without a traceback."""
    os.setsid()
    die_with_parent()
    out = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    pww_log.setup(label=label)
    code = 1
    try:
        work()
        code = 0
    except PwwError as fault:
        log.error("%s", fault)
        code = fault.exit_code
    except Exception:
        log.exception("%s ended", label)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # threads may wait for a peer for ever; all that is durable is on disk


def _central(folder: Path) -> None:
    """What `python -m pww.central` does."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    log.info("%s", serve(read_config(folder / CONFIG_FILE), folder, stop, clock=SystemClock()))


def _site(folder: Path, windows_per_s: float) -> None:
    """As `python -m pww.worker` does it, with a sleep for an engine."""
    config = read_config(folder / CONFIG_FILE)
    clock = SystemClock()
    with ExitStack() as stack:
        init_ranks(config)
        ranks = Ranks()
        stack.callback(ranks.close)
        ranks.handle_signals()
        space = BlockSpace.of(read_manifest(paths.PROJECT / config.central.manifest), config.darl)
        plan = PhasePlan.of(config, space)
        trainer = Sleeper(
            folder / BATCHES, batch_windows=config.optim.batch_windows,
            windows_per_s=windows_per_s, clock=clock,
        )  # fmt: skip
        outbox = Outbox(
            folder, ranks=ranks, codec=codec_named(config.codec.name), keep=config.checkpoint.keep
        )
        stack.callback(outbox.close)
        seed = folder / "theta0.safetensors"
        write_theta(seed, trainer.tensors(), trainer.shapes())
        start = Start(space, model_digest(trainer.shapes()), seed, outbox.last)
        ends = connect(config, folder, start, clock=clock, stop=ranks.asked)
        stack.callback(lambda: ends.close(()))
        metrics = Metrics(
            folder, project="", group="", name=folder.name, wandb_id="", mode="disabled", config={}
        )
        stack.callback(metrics.close)
        report = Report(
            folder, metrics=metrics, outbox=outbox, plan=plan,
            every_rounds=config.evaluation.every_rounds, clock=clock,
        )  # fmt: skip
        stack.callback(report.close)
        hand = Durable(
            ends.session, ends.exchange, outbox, report, plan=plan, ranks=ranks, clock=clock,
            overlap=config.diloco.overlap,
        )  # fmt: skip
        loop.run(hand, trainer, report, plan=plan)


class Sleeper:
    """`pww.trainer.api.Trainer` whose steps take time and nothing else.

    Each batch is on record before its work begins, so that a kill hides no draw.
    """

    def __init__(
        self, log_path: Path, *, batch_windows: int, windows_per_s: float, clock: SystemClock
    ) -> None:
        self._log, self._batch, self._speed = JsonLines(log_path), batch_windows, windows_per_s
        self._clock, self._never = clock, threading.Event()
        self._theta, self._phase = torch.zeros(1), 0
        self.step = 0

    def shapes(self) -> Mapping[str, Sequence[int]]:
        """One parameter of one element."""
        return {"theta": (1,)}

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """It."""
        yield "theta", self._theta.clone()

    def load(self, theta: Path) -> None:
        """Takes theta over."""
        self._theta = load_file(theta)["theta"]

    def run(
        self,
        windows: Sequence[int],
        *,
        progress: float,
        progress_end: float,
        on_step: StepHook,
        stop: Stop,
    ) -> PhaseResult:
        """Draws batch by batch, as long as the session allows it."""
        began_s = self._clock.monotonic()
        batches = [windows[i : i + self._batch] for i in range(0, len(windows), self._batch)]
        done, drawn = 0, list[int]()
        self._phase += 1
        for batch in batches:
            if stop.agreed():
                break
            self._log.write(
                {"phase": self._phase, "done": done, "of": len(batches), "windows": list(batch)}
            )
            drawn += batch
            self._clock.wait(self._never, len(batch) / self._speed)
            self._theta = self._theta - 1e-3
            done, self.step = done + 1, self.step + 1
        tokens = len(drawn) * (WINDOW_TOKENS - 1)
        return PhaseResult(
            steps=done, tokens=tokens, loss=1.0, drawn=tuple(sorted(drawn)),
            seconds=max(self._clock.monotonic() - began_s, 1e-6), stopped=done < len(batches),
        )  # fmt: skip

    def expect(self, windows: Sequence[int]) -> None:
        """Nothing is read."""

    def evaluate(self) -> EvalResult:
        """Nothing is learned."""
        return EvalResult(loss=1.0, tokens=1)

    def save_inner(self, folder: Path) -> None:
        """There is no inner state but the step."""
        self.copy_inner().write(folder)

    def copy_inner(self) -> "StepCopy":
        """The same in memory."""
        return StepCopy(self.step)

    def load_inner(self, folder: Path) -> None:
        """Restores it."""
        self.step = int((folder / "step").read_text())

    def reset_inner(self) -> None:
        """Nothing to forget."""

    def close(self) -> None:
        """Closes the log of the batches."""
        self._log.close()


@dataclass(frozen=True, slots=True)
class StepCopy:
    """An inner state that is a number."""

    step: int

    def write(self, folder: Path) -> None:
        """Writes it into a new folder."""
        folder.mkdir()
        (folder / "step").write_text(str(self.step))
