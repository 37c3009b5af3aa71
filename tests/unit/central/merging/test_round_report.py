"""A round's report: what is summed, what is pooled by tokens, what is kept apart by device."""

from types import SimpleNamespace

import pytest

from pww.central.round_report import round_report
from pww.wire import DeviceMfu, Gauges, PhaseMetrics, RoundReport


def offer(replica: str, *, tokens: int = 100, loss: float = 1.0, **gauges: object):
    metrics = PhaseMetrics(
        steps=1, tokens=tokens, loss=loss, phase_seconds=2.0, tokens_per_s=tokens / 2.0,
        drift=loss / 100, gauges=Gauges(**gauges),
    )  # fmt: skip
    return SimpleNamespace(replica=replica, tokens=tokens, metrics=metrics)


def report_of(*offers: object) -> RoundReport:
    result = SimpleNamespace(
        tokens=sum(one.tokens for one in offers), delta_norm=1.0, avg_delta_norm=1.0, agreement=1.0
    )
    return round_report(
        result, offers, round_=1, rejected=(), bytes_received=0, merge_seconds=0.0
    )  # fmt: skip


def test_loss_is_pooled_by_tokens_and_speed_is_summed() -> None:
    report = report_of(offer("lumi/a", tokens=100), offer("snellius/a", tokens=10, loss=2.0))
    assert report.loss == pytest.approx(120 / 110)
    assert report.tokens_per_s == 55.0
    assert (report.drift_mean, report.drift_max) == (pytest.approx(0.015), 0.02)


def test_a_replica_that_delivered_twice_has_one_speed() -> None:
    report = report_of(offer("lumi/a", tokens=100), offer("lumi/a", tokens=40), offer("lumi/b"))
    assert report.tokens_per_s == 20.0 + 50.0, "its newest phase; it trained one after the other"


def test_mfu_is_never_averaged_over_kinds_of_device() -> None:
    report = report_of(
        offer("lumi/a", device="MI250X-GCD", flops_per_s=4e14, peak_flops_per_s=16e14),
        offer("snellius/a", device="H100", flops_per_s=10e14, peak_flops_per_s=40e14),
        offer("snellius/b", device="H100", flops_per_s=5e14, peak_flops_per_s=10e14),
        offer("laptop/a", device="cpu", flops_per_s=1e9),
        offer("laptop/b"),
    )
    assert report.mfu == (
        DeviceMfu(device="H100", mfu=15 / 50), DeviceMfu(device="MI250X-GCD", mfu=0.25)
    )  # fmt: skip


def test_what_a_site_makes_up_breaks_no_report() -> None:
    fair = {"flops_per_s": 1.0, "peak_flops_per_s": 2.0}
    report = report_of(*(offer(f"s/{i}", device=f"d{i}", **fair) for i in range(99)))
    assert len(report.mfu) == 64
    assert RoundReport.model_validate_json(report.model_dump_json()) == report
    alone = report_of(offer("lumi/a", device="x", flops_per_s=1e30, peak_flops_per_s=5e-324))
    assert alone.mfu == (DeviceMfu(device="x", mfu=1e30),)
