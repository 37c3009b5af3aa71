"""What people and files learn from a replica: progress, `metrics.jsonl`, the closing summary."""

import logging
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from pww.clock import Clock
from pww.log import console
from pww.metrics import Metrics, perplexity, set_columns
from pww.replica.entry import Entry
from pww.replica.gauges import Hardware, Meters, columns
from pww.replica.plan import PhasePlan
from pww.rows import Left
from pww.trainer.api import EvalResult, StepHook, Trainer
from pww.transport.exchange import Theta
from pww.wire import Lease, Verdict

log = logging.getLogger(__name__)
PLAIN_LINE_S = 5.0
SHORTEST_S = 1e-9


class Phases(Protocol):
    """Where the phases of the run are on disk: an outbox."""

    @property
    def last(self) -> Entry | None:
        """The newest one."""


@dataclass(slots=True)
class Totals:
    """What the summary is made of."""

    phases: int = 0
    merged: int = 0
    rejected: int = 0
    tokens: int = 0
    first_round: int = -1
    first_held_out: float = math.nan
    last_round: int = -1
    last_held_out: float = math.nan
    sets: dict[str, tuple[float, float]] = field(default_factory=dict)  # first and last loss
    unsent: list[str] = field(default_factory=list)  # residuals that nobody gets any more


class Report:
    """Rank 0 speaks and writes; other ranks only take part in what is collective."""

    def __init__(
        self,
        run: Path,
        *,
        metrics: Metrics | None,
        outbox: Phases,
        plan: PhasePlan,
        every_rounds: int,
        clock: Clock,
        counts: Callable[[], dict[str, int]] | None = None,
        meters: Meters | None = None,
        left: Left = Left(),
    ) -> None:
        """`counts` are of this process so far, such as its retries; a row has what was added.

        `left` is what the rows of the process before end with; what it did not get to write of a
        delta is written now.
        """
        self.meters = meters or Meters(Hardware(), clock=clock)
        self._run, self._metrics, self._outbox, self._plan = run, metrics, outbox, plan
        self._every, self._clock = every_rounds, clock
        self._tokens_total = 0 if outbox.last is None else outbox.last.tokens_total
        self._counts, self._counted = counts or dict, dict[str, int]()
        self._saved_s = 0.0
        self._evaluated = -1
        self._row: dict[str, Any] | None = None
        self._left = left
        self._catch_up(outbox.last)
        self.totals = Totals()
        self._bar = _Bar(
            clock, plan.space.num_windows * plan.space.epochs, speaks=metrics is not None
        )

    def evaluate(self, theta: Theta, trainer: Trainer) -> EvalResult | None:
        """Held-out loss at `theta`, which the trainer holds, when this round is due. Collective."""
        self.meters.got(theta)
        self._flush(theta)
        return self._evaluate(theta, trainer) if self.is_due(theta) else None

    def is_due(self, theta: Theta) -> bool:
        """Whether `evaluate` will look at `theta`; the same on every rank."""
        if theta.round == self._evaluated:
            return False  # it was, and the phase from it was rejected
        return theta.round % self._every == 0 or self._evaluated < 0

    def _evaluate(self, theta: Theta, trainer: Trainer) -> EvalResult:
        start_s = self._clock.monotonic()
        result = trainer.evaluate()
        took_s = self._clock.monotonic() - start_s
        self.meters.busy(took_s)
        self._evaluated = theta.round
        if self.totals.first_round < 0:
            self.totals.first_round, self.totals.first_held_out = theta.round, result.loss
        self.totals.last_round, self.totals.last_held_out = theta.round, result.loss
        for one in result.sets:
            self.totals.sets[one.name] = (
                self.totals.sets.get(one.name, (one.loss, math.nan))[0],
                one.loss,
            )
        told = (self._left.round, self._left.state_hash) == (theta.round, theta.state_hash)
        if self._metrics is not None and not told:
            self._metrics.row(
                "eval", step=trainer.step, round=theta.round, tokens=self._tokens_total,
                loss=result.loss, perplexity=perplexity(result.loss),
                held_out_tokens=result.tokens, state_hash=theta.state_hash,
                evaluation_seconds=took_s, **set_columns(result.sets), **_accuracy(result),
            )  # fmt: skip
        if self._metrics is not None:
            others = "".join(f", {one.name} {one.loss:.4f}" for one in result.sets)
            others += "".join(f", accuracy {x:.2%}" for x in _accuracy(result).values())
            log.info("round %d: held-out loss %.4f%s", theta.round, result.loss, others)
        return result

    def steps(self, lease: Lease, theta: Theta, *, ahead: int = 0) -> StepHook:
        """The hook of one phase: train rows and the progress line.

        `ahead` windows of the phase before are on their way.
        """
        last = self._outbox.last
        before = 0 if last is None else last.tokens_total
        own = self._plan.space.num_span_windows(lease.span)
        times = self._plan.replicas  # the others' steps are as ours, give or take a block
        self.meters.begins()
        at, at_s = 0, self._clock.monotonic()

        def on_step(*, step: int, done: int, of: int, loss: float, tokens: int, lr: float) -> None:
            nonlocal at, at_s
            if self._metrics is None:
                return
            now_s = self._clock.monotonic()
            self._metrics.row(
                "train", step=step, round=theta.round, tokens=before + times * tokens, loss=loss,
                lr=lr, phase_step=done, phase_steps=of,
                tokens_per_s=times * (tokens - at) / max(now_s - at_s, SHORTEST_S),
            )  # fmt: skip
            at, at_s = tokens, now_s
            reached = theta.committed_windows + ahead + own * done // of
            self._bar.at(reached, f"round {theta.round} step {done}/{of} loss {loss:.3f}")

        return on_step

    @contextmanager
    def exchanging(self) -> Iterator[None]:
        """Times the exchange of one delta."""
        start = self._clock.monotonic()
        yield
        self.meters.exchanged(self._clock.monotonic() - start)

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Times how long a phase is made durable, its delta encoded and its inner state saved."""
        start = self._clock.monotonic()
        yield
        self._saved_s = self._clock.monotonic() - start
        self.meters.busy(self._saved_s)  # not a wait, where it comes after the exchange

    def verdict(self, entry: Entry, verdict: Verdict, *, sent_bytes: int = 0) -> None:
        """Counts and writes down what became of a delta; `sent_bytes` if it was no payload."""
        self.totals.phases += 1
        self._tokens_total = self.totals.tokens = entry.tokens_total
        merged = verdict.outcome == "merged"
        if merged:
            self.totals.merged += 1
        else:
            self.totals.rejected += 1
        if self._metrics is None:
            return
        if not merged:
            log.warning(
                "delta of round %d was rejected: %s", entry.offer.base_round, verdict.reason
            )
        self._flush(None)
        self._row = _outer(entry, verdict, sent_bytes) | {
            "exchange_seconds": self.meters.exchange_s, "checkpoint_seconds": self._saved_s,
        }  # fmt: skip
        if not merged:
            self._flush(None)

    def _catch_up(self, last: Entry | None) -> None:
        """The row of a delta whose verdict the process before noted, and no more: it was killed."""
        if last is not None and last.verdict is not None and last.offer.delta != self._left.delta:
            self._row = _outer(last, last.verdict)

    def _flush(self, theta: Theta | None) -> None:
        """Writes the outer row of the last delta, with the merge that took it if it is known."""
        if self._metrics is None or self._row is None:
            return
        row, self._row = self._row | {"retries": 0} | self._added(), None
        if theta is not None:
            row["bytes_received"] = theta.received_bytes
        merge = None if theta is None else theta.report
        # whoever pulls late finds the theta of a later merge, which did not take this delta
        if merge is not None and merge.round == row["round"]:
            row |= {
                "agreement": merge.agreement, "merged_delta_norm": merge.delta_norm,
                "avg_delta_norm": merge.avg_delta_norm, "drift_mean": merge.drift_mean,
                "drift_max": merge.drift_max, "merge_seconds": merge.merge_seconds,
                "contributors": len(merge.merged), "pooled_loss": merge.loss,
            }  # fmt: skip
        self._metrics.row("outer", **row)

    def _added(self) -> dict[str, int]:
        """What was counted since the last row: no repeat is in two rows, or in none."""
        before, self._counted = self._counted, self._counts()
        return {name: count - before.get(name, 0) for name, count in self._counted.items()}

    def finish(self, theta: Theta, trainer: Trainer) -> None:
        """The corpus is exhausted: the last held-out loss, at the final theta. Collective."""
        self._flush(theta)
        trainer.load(theta.path)
        self._bar.at(self._plan.space.total_windows, f"round {theta.round}, complete")
        if self._evaluated != theta.round:
            self._evaluate(theta, trainer)
        self._bar.close()

    def residual_lost(self, entry: Entry, *, why: Literal["dropped", "end"]) -> None:
        """What encoding the delta of `entry` lost will not be sent: it is dropped, or all ends."""
        self._flush(None)
        told = entry.offer.metrics
        share = told.residual_norm / told.delta_norm if told.delta_norm else math.inf
        self.totals.unsent.append(
            f"norm {told.residual_norm:.3g}, {share:.2%} of its delta's"
            + (", dropped at the start" if why == "dropped" else "")
        )
        if self._metrics is not None:
            self._metrics.row(
                "residual", step=entry.step, round=entry.offer.base_round,
                tokens=entry.tokens_total, loss=told.loss, why=why, delta=entry.offer.delta,
                norm=told.residual_norm, of_delta=share,
            )  # fmt: skip

    def close(self) -> None:
        """Writes what is still to be written and takes the bar off; safe to call twice."""
        self._flush(None)
        self._bar.close()

    def summary(self, *, ended: str) -> str:
        """A few lines: what happened and where it is."""
        t = self.totals
        unsent = [f"  never sent   what encoding lost: {text}" for text in t.unsent]
        sets = [f"  loss of {n} {a:.4f} -> {b:.4f}" for n, (a, b) in t.sets.items()]
        lines = [
            f"{ended}: {t.merged} phases merged, {t.rejected} rejected, {t.tokens:,} tokens",
            f"  held-out loss {t.first_held_out:.4f} (round {t.first_round}) -> "
            f"{t.last_held_out:.4f} (round {t.last_round})",
            *sets,
            *unsent,
            f"  metrics      {self._run / 'metrics.jsonl'}",
            f"  checkpoints  {self._run / 'checkpoints'}",
        ]
        return "\n".join(lines)


def _accuracy(result: EvalResult) -> dict[str, float]:
    return {} if math.isnan(result.accuracy) else {"accuracy": result.accuracy}


def _outer(entry: Entry, verdict: Verdict, sent_bytes: int = 0) -> dict[str, Any]:
    """What is told of one delta, whichever process sent it."""
    told = _measured(entry)
    if not entry.offer.finite and told["loss"] == 0.0:
        told["loss"] = math.nan  # a message cannot say so
    return {
        "step": entry.step, "round": verdict.round, "tokens": entry.tokens_total,
        "loss": told.pop("loss"), "base_round": entry.offer.base_round,
        "outcome": verdict.outcome, "reason": verdict.reason, "delta": entry.offer.delta,
        "bytes_sent": entry.offer.payload.size_bytes or sent_bytes,
        "phase_tokens": told.pop("tokens"), **told,
    }  # fmt: skip


def _measured(entry: Entry) -> dict[str, Any]:
    """The phase's own measurements as a flat row."""
    told = entry.offer.metrics
    held_out = {"held_out_loss", "held_out_tokens", "held_out_sets"}
    return told.model_dump(exclude={"gauges", *held_out}) | columns(told.gauges)


class _Bar:
    """Progress over the corpus: a bar on a terminal, a plain line every few seconds elsewhere."""

    def __init__(self, clock: Clock, total: int, *, speaks: bool) -> None:
        self._clock, self._total, self._speaks = clock, total, speaks
        self._start_s = self._said_s = clock.monotonic()
        self._first: int | None = None
        self._rich: Progress | None = None
        if speaks and sys.stderr.isatty():
            self._rich = Progress(
                TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(),
                TextColumn("{task.fields[rate]}"), TimeElapsedColumn(), TimeRemainingColumn(),
                console=console(),
            )  # fmt: skip
            self._task = self._rich.add_task("starting", total=total, rate="")
            self._rich.start()

    def at(self, windows: int, text: str) -> None:
        """`windows` of the corpus are behind us, counting every site."""
        if not self._speaks:
            return
        now = self._clock.monotonic()
        if self._first is None:
            self._first, self._start_s = windows, now
        # behind the start where a rejected phase is trained again
        rate = max(0.0, windows - self._first) / max(now - self._start_s, 1e-9)
        if self._rich is not None:
            self._rich.update(
                self._task, completed=windows, description=text, rate=f"{rate:.0f} windows/s"
            )
        elif now - self._said_s >= PLAIN_LINE_S:
            self._said_s = now
            left = (self._total - windows) / rate if rate > 0 else math.inf
            eta = f"{left:.0f} s left" if math.isfinite(left) else "time left unknown"
            log.info("%s  %d/%d windows  %.0f windows/s  %s", text, windows, self._total, rate, eta)

    def close(self) -> None:
        if self._rich is not None:
            self._rich.stop()
            self._rich = None
