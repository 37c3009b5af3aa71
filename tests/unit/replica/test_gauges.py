"""What is measured beside the training: speed by the devices' peak, waits, traffic."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "programs"))

from lone_replica import Lone, Pull, alone

from pww.clock import ManualClock
from pww.config.load import compose
from pww.log import read_json_lines
from pww.replica.gauges import Hardware, Meters, columns
from pww.trainer.api import EvalResult, PhaseResult, SetResult
from pww.transport.carrier import Transfers
from pww.transport.exchange import Theta
from pww.wire import Gauges, mfu

PHASE = PhaseResult(
    steps=10, tokens=2000, loss=1.0, seconds=4.0, drawn=(), stopped=False, flops_per_token=6e9,
    memory_bytes=123,
)  # fmt: skip
H100 = Hardware("H100", 4, 989e12)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["site=lumi", "site.queue.account=x"], Hardware("MI250X-GCD", 8, 191.5e12)),
        (["site=snellius"], Hardware("H100", 4, 989e12)),
        (["site=snellius", "site.queue.partition=gpu_a100"], Hardware("A100", 4, 312e12)),
        (["site=local"], Hardware("cpu", 1, 0.0)),
    ],
)
def test_the_peak_is_the_sites(words: list[str], expected: Hardware) -> None:
    assert Hardware.of(compose(words)) == expected


def test_speed_is_flops_of_all_ranks_by_the_peak_of_all_ranks() -> None:
    gauges = Meters(H100, clock=ManualClock()).read(PHASE)
    assert gauges.flops_per_s == 6e9 * 2000 / 4.0
    assert gauges.peak_flops_per_s == 4 * 989e12
    assert gauges.mfu == pytest.approx(3e12 / 3.956e15)
    assert (gauges.device, gauges.ranks, gauges.memory_bytes) == ("H100", 4, 123)


def test_without_a_peak_there_is_no_mfu() -> None:
    told = columns(Meters(Hardware("cpu", 2, 0.0), clock=ManualClock()).read(PHASE))
    assert told["tflops"] == 3.0
    assert "mfu" not in told
    nothing = columns(Gauges())
    assert nothing == {"wait_seconds": 0.0, "bytes_up": 0, "bytes_down": 0}
    assert mfu(1e30, 5e-324) == 1e30, "what a message can tell"
    no_time = Meters(H100, clock=ManualClock()).read(replace(PHASE, seconds=0.0, tokens=10**15))
    assert no_time.flops_per_s == 1e30


def test_a_wait_ends_where_the_phase_begins_and_evaluation_is_none() -> None:
    clock = ManualClock()
    meters = Meters(H100, clock=clock, sent=lambda: 50)
    clock.advance(5.0)
    meters.busy(3.0)
    meters.begins()
    assert meters.wait_s == 2.0
    clock.advance(100.0)  # the phase
    meters.exchanged(7.0)
    clock.advance(1.5)
    meters.begins()
    gauges = meters.read(PHASE)
    assert (gauges.wait_seconds, gauges.exchange_seconds, gauges.bytes_up) == (1.5, 7.0, 50)


def test_a_theta_counts_once_and_a_rate_is_a_carriers() -> None:
    moved = Transfers(bytes_up=600, seconds_up=2.0, bytes_down=90, seconds_down=3.0)
    meters = Meters(H100, clock=ManualClock(), transfers=lambda: moved)
    theta = Theta(3, Path("x"), "f" * 64, None, 0, received_bytes=40)
    meters.got(theta)
    meters.got(theta)
    meters.got(replace(theta, round=4))
    gauges = meters.read(PHASE)
    assert (gauges.bytes_down, gauges.up_bytes_per_s, gauges.down_bytes_per_s) == (80, 300.0, 30.0)
    assert Meters(H100, clock=ManualClock()).read(PHASE).up_bytes_per_s == 0.0


# ------------------------------------------------------------------------------ in a run's rows


class Counted(Pull):
    """Says what it used, and is evaluated on another corpus."""

    def run(self, *given, **more):
        result = super().run(*given, **more)
        return replace(result, flops_per_token=2e12, memory_bytes=77)

    def evaluate(self) -> EvalResult:
        self.clock.advance(0.5)
        return replace(super().evaluate(), sets=(SetResult("wiki", 2.0, 9),))


def test_rows_have_speed_waits_and_the_other_corpora(tmp_path: Path) -> None:
    ranks = alone()
    lone = Lone(tmp_path / "run", ranks, trainer=Counted())
    lone.report.meters = Meters(
        Hardware("H100", 2, 4e13), clock=lone.trainer.clock, sent=lone.ends.sent
    )
    lone.train()
    ranks.close()
    rows = read_json_lines(tmp_path / "run" / "metrics.jsonl")
    train = [row for row in rows if row["split"] == "train"]
    assert [row["tokens_per_s"] for row in train[:2]] == [32.0, 32.0], "4 windows of 8 in a second"
    outer = [row for row in rows if row["split"] == "outer"]
    for row in outer[:-1]:
        assert row["tflops"] == pytest.approx(2 * row["phase_tokens"] / row["phase_seconds"])
        assert row["mfu"] == pytest.approx(row["tflops"] / 80)
        assert (row["device"], row["ranks"], row["memory_bytes"]) == ("H100", 2, 77)
        assert row["checkpoint_seconds"] == 0.0, "a clock that only training moves"
        assert row["wait_seconds"] == 0.0, "evaluation is no wait"
    sent = [row["bytes_sent"] for row in outer]
    assert [row["bytes_up"] for row in outer] == [sum(sent[:n]) for n in range(len(sent))]
    held_out = [row for row in rows if row["split"] == "eval"]
    for row in held_out:
        assert (row["loss_wiki"], row["tokens_wiki"]) == (2.0, 9)
        assert row["perplexity_wiki"] == pytest.approx(7.389056)
        assert row["evaluation_seconds"] == 0.5


def test_a_checkpoint_after_the_exchange_is_no_wait(tmp_path: Path) -> None:
    """The replicas of an allocation save once the books have their phase."""
    ranks, clock = alone(), ManualClock()
    lone = Lone(tmp_path / "run", ranks)
    report = lone.report
    report._clock = clock
    report.meters = Meters(Hardware(), clock=clock)
    with report.exchanging():
        clock.advance(2.0)
    with report.saving():
        clock.advance(5.0)
    clock.advance(0.25)
    report.meters.begins()
    lone.close()
    ranks.close()
    assert (report.meters.exchange_s, report.meters.wait_s) == (2.0, 0.25)
