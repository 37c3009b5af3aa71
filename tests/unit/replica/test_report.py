"""What a replica tells: each row with its split and numbers, a merge's row once, progress."""

import logging
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "programs"))

from lone_replica import PLAN, TOKENS, Lone, Pull, alone

from pww.clock import ManualClock
from pww.errors import Stopped
from pww.log import read_json_lines
from pww.replica import report as pww_report
from pww.replica.outbox import Outbox
from pww.replica.report import Report
from pww.trainer.api import EvalResult, SetResult
from pww.transport.exchange import Theta
from pww.transport.tensorfile import state_hash
from pww.wire import Lease, RoundReport, Span, Verdict


@pytest.fixture(scope="module")
def group():
    ranks = alone()
    yield ranks
    ranks.close()


@pytest.fixture
def lone(tmp_path: Path, group):
    group.asked.clear()
    return Lone(tmp_path / "run", group)


def rows(lone: Lone, split: str = "") -> list[dict]:
    found = read_json_lines(lone.run / "metrics.jsonl")
    return [row for row in found if split in ("", row["split"])]


# -------------------------------------------------------------------------- a whole run's rows


def test_every_row_says_what_and_when(lone: Lone) -> None:
    lone.train()
    for row in rows(lone):
        assert list(row)[:5] == ["split", "step", "round", "tokens", "loss"]
        assert isinstance(row["loss"], float)
    order = [row["split"] for row in rows(lone)]
    assert order == ["eval", "train", "train"] + ["outer", "eval", "train", "train"] * 4 + [
        "outer", "eval", "train", "outer", "eval",
    ]  # fmt: skip


def test_a_row_has_what_was_added_to_each_count_since_the_one_before(lone: Lone) -> None:
    asked = 0

    def counts() -> dict[str, int]:
        nonlocal asked
        asked += 1
        return {"retries": asked**2, "theta_whole": 1, "theta_updates": asked}

    lone.report._counts = counts
    lone.train()
    outer = rows(lone, "outer")
    assert [row["retries"] for row in outer] == [2 * n + 1 for n in range(len(outer))]
    assert [row["theta_whole"] for row in outer] == [1] + [0] * (len(outer) - 1)
    assert [row["theta_updates"] for row in outer] == [1] * len(outer)


def test_what_was_repeated_after_the_last_verdict_is_in_its_row(lone: Lone) -> None:
    """The last theta was hard to get, say."""
    repeats = 0
    pull = lone.exchange.pull

    def slow(newest: int = 0):
        nonlocal repeats
        repeats += 1
        return pull(newest)

    lone.exchange.pull = slow
    lone.report._counts = lambda: {"retries": repeats}
    lone.train()
    retries = [row["retries"] for row in rows(lone, "outer")]
    assert sum(retries) == repeats == len(retries) + 1


def test_train_rows_count_steps_and_tokens_over_the_run(lone: Lone) -> None:
    lone.train()
    train = rows(lone, "train")
    assert [row["step"] for row in train] == list(range(1, 12))
    assert [row["loss"] for row in train] == [1.0 / step for step in range(1, 12)]
    assert [row["round"] for row in train] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5]
    assert [(row["phase_step"], row["phase_steps"]) for row in train[-3:]] == [
        (1, 2), (2, 2), (1, 1)
    ]  # fmt: skip
    drawn = [len(windows) for windows in lone.trainer.drawn]
    assert [row["tokens"] for row in train if row["phase_step"] == row["phase_steps"]] == [
        TOKENS * sum(drawn[: n + 1]) for n in range(6)
    ]
    assert train[-1]["tokens"] == 42 * TOKENS


def test_held_out_rows_name_the_theta_and_are_taken_before_its_phase(lone: Lone) -> None:
    lone.train()
    held_out = rows(lone, "eval")
    assert [row["round"] for row in held_out] == list(range(7))
    assert [row["step"] for row in held_out] == [0, 2, 4, 6, 8, 10, 11]
    assert [row["tokens"] for row in held_out][::6] == [0, 42 * TOKENS]
    last = max((lone.run / "central" / "generations").glob("round-*"))
    assert held_out[-1]["state_hash"] == state_hash(last / "theta.safetensors")
    assert held_out[-1]["loss"] == lone.trainer.evaluate().loss
    assert held_out[-1]["perplexity"] == pytest.approx(2.718281828 ** held_out[-1]["loss"])
    assert {row["held_out_tokens"] for row in held_out} == {100}


def test_outer_rows_join_the_delta_with_its_merge(lone: Lone) -> None:
    lone.train()
    outer = rows(lone, "outer")
    assert [(row["base_round"], row["round"]) for row in outer] == [(n, n + 1) for n in range(6)]
    assert [row["step"] for row in outer] == [2, 4, 6, 8, 10, 11]
    for row in outer:
        assert (row["outcome"], row["reason"], row["loss"]) == ("merged", "", 2.5)
        assert row["contributors"] == 1
        assert row["pooled_loss"] == 2.5
        assert row["avg_delta_norm"] == pytest.approx(row["merged_delta_norm"])
        assert row["delta_norm"] == pytest.approx(row["merged_delta_norm"], rel=1e-6)
        assert row["drift_max"] == row["drift_mean"] == row["drift"]
        assert row["exchange_seconds"] == 0.0, "a clock that does not move"
        assert row["bytes_sent"] > 0
        assert "held_out_loss" not in row
    assert [row["phase_tokens"] for row in outer] == [TOKENS * len(w) for w in lone.trainer.drawn]
    assert outer[-1]["tokens"] == 42 * TOKENS
    draws = read_json_lines(lone.run / "draws.jsonl")
    assert [row["delta"] for row in outer] == [row["delta"] for row in draws]


def test_a_rejected_delta_is_a_row_of_its_own(tmp_path: Path, group) -> None:
    group.asked.clear()
    lone = Lone(tmp_path / "run", group, trainer=Pull(nan_in=(2,)))
    lone.train()
    outer = rows(lone, "outer")
    assert [row["outcome"] for row in outer] == ["merged", "rejected"] + ["merged"] * 5
    row = outer[1]
    assert (row["round"], row["base_round"], row["bytes_sent"]) == (1, 1, 0)
    assert "not finite" in row["reason"]
    assert "contributors" not in row, "no merge took it"
    assert [row["round"] for row in outer if row["outcome"] == "merged"] == list(range(1, 7))
    assert [row["round"] for row in rows(lone, "eval")] == list(range(7)), "once each"


def test_a_loss_that_is_no_number_is_not_told_as_zero(tmp_path: Path, group) -> None:
    class Lost(Pull):
        def run(self, *args, **told):
            result = super().run(*args, **told)
            return replace(result, loss=math.nan) if self.phases == 2 else result

    group.asked.clear()
    lone = Lone(tmp_path / "run", group, trainer=Lost())
    lone.train()
    outer = rows(lone, "outer")
    assert [row["outcome"] for row in outer] == ["merged", "rejected"] + ["merged"] * 5
    assert math.isnan(outer[1]["loss"])
    assert {row["loss"] for row in outer if row["outcome"] == "merged"} == {2.5}


def test_every_other_round_is_evaluated_and_the_first_and_last_ones(tmp_path: Path, group) -> None:
    group.asked.clear()
    lone = Lone(tmp_path / "run", group, every_rounds=4)
    lone.train()
    assert [row["round"] for row in rows(lone, "eval")] == [0, 4, 6]
    assert lone.trainer.evaluations == 3


def test_a_resumed_run_goes_on_in_its_file_and_evaluates_at_once(tmp_path: Path, group) -> None:
    group.asked.clear()
    trainer = Pull()
    trainer.on_batch = lambda: group.ask_to_stop() if trainer.step == 5 else None
    with pytest.raises(Stopped):
        Lone(tmp_path / "run", group, trainer=trainer, every_rounds=4).train()
    group.asked.clear()
    again = Lone(tmp_path / "run", group, every_rounds=4)
    again.train()
    # the fifth step was of a phase that was not delivered: its tokens are trained again
    assert [row["step"] for row in rows(again, "train")] == list(range(1, 12))
    assert [row["round"] for row in rows(again, "eval")] == [0, 2, 4, 6]
    assert rows(again, "train")[-1]["tokens"] == 42 * TOKENS


def test_kills_leave_each_row_once(tmp_path: Path, group, monkeypatch) -> None:
    """Killed within a phase whose theta was evaluated, and between a verdict and its row."""
    group.asked.clear()
    whole = Lone(tmp_path / "whole", group)
    whole.train()
    run, killed = tmp_path / "run", 0

    class Killed(BaseException):
        """Nothing that a process does when it ends."""

    trainer = Pull()

    def die() -> None:
        raise Killed

    trainer.on_batch = lambda: die() if trainer.step == 5 else None
    settle = Outbox.settle

    def settled(outbox: Outbox, verdict: Verdict) -> None:
        nonlocal killed
        settle(outbox, verdict)
        killed += 1
        if killed == 2:
            raise Killed

    for engine in (trainer, Pull()):
        lone = Lone(run, group, trainer=engine)
        with monkeypatch.context() as patched:
            patched.setattr(Report, "close", lambda report: None)
            if engine is not trainer:
                patched.setattr(Outbox, "settle", settled)
            with pytest.raises(Killed):
                lone.train()
    again = Lone(run, group)
    again.train()

    def told(lone: Lone) -> list[tuple[object, ...]]:
        what = ("split", "step", "round", "tokens", "loss", "state_hash", "outcome")
        return [tuple(row.get(key) for key in what) for row in rows(lone)]

    assert told(again) == told(whole)
    deltas = [row["delta"] for row in rows(again, "outer")]
    assert len(set(deltas)) == len(deltas)


def test_the_summary_says_what_happened_and_where_it_is(tmp_path: Path, group) -> None:
    group.asked.clear()
    lone = Lone(tmp_path / "run", group, trainer=Pull(nan_in=(2,)))
    lone.train()
    lines = lone.report.summary(ended="corpus x is exhausted").splitlines()
    first, last = rows(lone, "eval")[0]["loss"], rows(lone, "eval")[-1]["loss"]
    tokens = 42 * TOKENS + 8 * TOKENS  # the phase that went to nan was trained too
    assert lines == [
        f"corpus x is exhausted: 6 phases merged, 1 rejected, {tokens:,} tokens",
        f"  held-out loss {first:.4f} (round 0) -> {last:.4f} (round 6)",
        f"  metrics      {lone.run / 'metrics.jsonl'}",
        f"  checkpoints  {lone.run / 'checkpoints'}",
    ]
    assert (lone.run / "metrics.jsonl").exists()
    assert (lone.run / "checkpoints").is_dir()


def test_the_loss_over_a_set_is_told_with_the_held_out_one(tmp_path: Path, group, caplog) -> None:
    class Two(Pull):
        def evaluate(self) -> EvalResult:
            held_out = super().evaluate()
            return replace(held_out, sets=(SetResult("wiki", 2 * held_out.loss, 10),))

    group.asked.clear()
    caplog.set_level(logging.INFO)
    lone = Lone(tmp_path / "run", group, trainer=Two())
    lone.train()
    told = rows(lone, "eval")
    first, last = told[0]["loss"], told[-1]["loss"]
    assert f"round 0: held-out loss {first:.4f}, wiki {2 * first:.4f}" in caplog.messages
    assert f"round 6: held-out loss {last:.4f}, wiki {2 * last:.4f}" in caplog.messages
    lines = lone.report.summary(ended="corpus x is exhausted").splitlines()
    assert lines[2] == f"  loss of wiki {2 * first:.4f} -> {2 * last:.4f}"


# -------------------------------------------------------------------- one row at a time


def merge_of(round_: int, *, replicas: int = 2) -> RoundReport:
    return RoundReport(
        round=round_, merged=tuple(f"local/{c}" for c in "abcd"[:replicas]), rejected=(), tokens=9,
        loss=1.5, delta_norm=3.0, avg_delta_norm=4.0, agreement=0.5, drift_mean=0.1,
        drift_max=0.2, bytes_received=7, merge_seconds=0.25,
    )  # fmt: skip


@pytest.fixture
def one_delta(tmp_path: Path, group):
    """A report whose delta was merged into round 1 and whose outer row is not written yet."""
    from lone_replica import LEASES, put_one, theta_in

    group.asked.clear()
    lone = Lone(tmp_path / "run", group)
    theta = theta_in(tmp_path / "theta")
    entry = put_one(lone.outbox, lone.trainer, theta, LEASES[0])
    verdict = Verdict(delta=entry.offer.delta, outcome="merged", round=1)
    lone.outbox.settle(verdict)
    lone.report.verdict(entry, verdict)
    yield lone, theta
    lone.close()


def at_round(theta: Theta, report: RoundReport | None, round_: int) -> Theta:
    return Theta(round_, theta.path, "e" * 64, report, 0)


def test_the_row_waits_for_the_merge_that_took_the_delta(one_delta) -> None:
    lone, theta = one_delta
    assert rows(lone, "outer") == []
    lone.report.evaluate(at_round(theta, merge_of(1), 1), lone.trainer)
    (row,) = rows(lone, "outer")
    assert (row["contributors"], row["agreement"], row["merge_seconds"]) == (2, 0.5, 0.25)
    assert (row["drift_mean"], row["drift_max"], row["pooled_loss"]) == (0.1, 0.2, 1.5)
    assert (row["merged_delta_norm"], row["avg_delta_norm"]) == (3.0, 4.0)
    assert row["loss"] == 2.5, "the phase's own loss, not the pooled one"


def test_a_later_merge_is_not_taken_for_the_deltas_own(one_delta) -> None:
    """A site that pulls late finds a theta that others have moved meanwhile."""
    lone, theta = one_delta
    lone.report.evaluate(at_round(theta, merge_of(2, replicas=3), 2), lone.trainer)
    (row,) = rows(lone, "outer")
    assert (row["outcome"], row["round"]) == ("merged", 1)
    assert "contributors" not in row


def test_closing_writes_what_is_left_once(one_delta) -> None:
    lone, _ = one_delta
    lone.report.close()
    lone.report.close()
    (row,) = rows(lone, "outer")
    assert (row["round"], row["outcome"]) == (1, "merged")


def test_the_exchange_is_timed(one_delta) -> None:
    lone, _ = one_delta
    entry = lone.outbox.last
    with lone.report.exchanging():
        lone.trainer.clock.advance(12.5)
    lone.report.verdict(entry, entry.verdict)
    lone.report.close()
    assert [row["exchange_seconds"] for row in rows(lone, "outer")] == [0.0, 12.5]


def test_a_loss_beyond_all_bounds_is_still_a_row(one_delta) -> None:
    lone, theta = one_delta
    lone.trainer.evaluate = lambda: EvalResult(loss=1e6, tokens=1)
    lone.report.evaluate(at_round(theta, None, 1), lone.trainer)
    row = rows(lone, "eval")[-1]
    assert row["perplexity"] == pytest.approx(1.0142320547350045e304)


def test_ranks_without_metrics_take_part_and_say_nothing(lone: Lone, caplog, tmp_path) -> None:
    caplog.set_level(logging.INFO, logger="pww.replica")
    silent = Report(
        tmp_path, metrics=None, outbox=lone.outbox, plan=PLAN, every_rounds=1,
        clock=lone.trainer.clock,
    )  # fmt: skip
    theta = Theta(3, tmp_path, "f" * 64, None, 0)
    assert silent.evaluate(theta, lone.trainer) == lone.trainer.evaluate()
    silent.steps(lease(0, 2), theta)(step=1, done=1, of=2, loss=1.0, tokens=1, lr=1.0)
    silent.close()
    lone.close()
    assert caplog.text == ""
    assert rows(lone) == []


# ---------------------------------------------------------------------------------- progress


def lease(start: int, stop: int) -> Lease:
    return Lease(id=1, replica="local/a", span=Span(start, stop), watermark=22, ttl_s=1.0)


@pytest.fixture
def progress(lone: Lone, caplog, monkeypatch):
    """Tells a step of a lease that starts at 10 of 42 windows; → the lines it brought."""
    caplog.set_level(logging.INFO, logger="pww.replica")
    clock = ManualClock(100.0)
    told = Report(
        lone.run, metrics=lone.metrics, outbox=lone.outbox, plan=PLAN, every_rounds=1, clock=clock
    )
    theta = Theta(3, lone.run, "f" * 64, None, 0)
    from lone_replica import SPACE

    short = next(p for p in range(11) if SPACE.size(p) == 2)
    start = 0 if short > 1 else 2
    hook = told.steps(lease(start, start + 2), replace(theta, committed_windows=10))

    def step(*, seconds: float, done: int, of: int = 8) -> list[str]:
        clock.advance(seconds)
        caplog.clear()
        hook(step=7, done=done, of=of, loss=1.23456, tokens=3, lr=0.1)
        return [record.getMessage() for record in caplog.records]

    yield step
    told.close()
    lone.close()


def test_a_plain_line_every_five_seconds_with_rate_and_what_is_left(progress) -> None:
    assert progress(seconds=1, done=1) == []  # the clock of the rate starts here, at 11 windows
    assert progress(seconds=3.5, done=2) == []
    # 5 s after the start: 2 windows in 4 s, 29 of 42 left
    assert progress(seconds=0.5, done=3) == [
        "round 3 step 3/8 loss 1.235  13/42 windows  0 windows/s  58 s left"
    ]
    assert progress(seconds=4.9, done=4) == []
    (line,) = progress(seconds=0.1, done=8)  # 7 windows in 9 s, 24 left
    assert line == "round 3 step 8/8 loss 1.235  18/42 windows  1 windows/s  31 s left"


def test_nothing_done_yet_promises_nothing(progress) -> None:
    (line,) = progress(seconds=6, done=1)
    assert line == "round 3 step 1/8 loss 1.235  11/42 windows  0 windows/s  time left unknown"
    # trained again after a rejection: behind where it was first seen
    (line,) = progress(seconds=6, done=0)
    assert line.endswith("10/42 windows  0 windows/s  time left unknown")


def test_a_terminal_gets_a_bar_that_goes_away(lone: Lone, monkeypatch) -> None:
    import io
    import re

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "160")
    told = Report(
        lone.run, metrics=lone.metrics, outbox=lone.outbox, plan=PLAN, every_rounds=1,
        clock=ManualClock(),
    )  # fmt: skip
    hook = told.steps(lease(0, 2), Theta(5, lone.run, "f" * 64, None, 34))
    hook(step=1, done=2, of=2, loss=2.0, tokens=1, lr=0.1)
    told.close()
    told.close()
    lone.close()
    text = re.sub("\x1b\\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue())
    assert "round 5 step 2/2 loss 2.000" in text
    assert "100%" in text
    assert pww_report.PLAIN_LINE_S == 5.0
