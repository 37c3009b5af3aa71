"""The status as Prometheus text (exposition format 0.0.4), by the reference client library."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from pww.central.status import Status

PHASE_GAUGES = (
    ("tokens_per_s", "pww_member_tokens_per_second", "Of its newest phase."),
    ("tflops", "pww_member_tflops", "Model TFLOP/s of its newest phase, all ranks."),
    ("mfu", "pww_member_mfu", "Share of its devices' peak; 0: the peak is not known."),
    ("memory_bytes", "pww_member_memory_bytes", "The most that a rank had in use."),
    ("wait_s", "pww_member_wait_seconds", "Before its newest phase."),
    ("exchange_s", "pww_member_exchange_seconds", "Of the delta before."),
    ("bytes_up", "pww_member_bytes_up", "Payloads of its process so far."),
    ("bytes_down", "pww_member_bytes_down", "Likewise."),
)
BLOCK_STATES = ("committed", "leased", "unassigned", "quarantined")


class _Collector:
    """One look at the run; gauges are of this moment, counters of the run or of this process."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def collect(self) -> Iterable[Metric]:
        status, run = self._status, [self._status["run"]]
        merges = CounterMetricFamily("pww_merges", "Rounds merged.", labels=["run"])
        merges.add_metric(run, status["merges"])
        retries = CounterMetricFamily(
            "pww_carrier_retries", "Repeated requests to the object store.", labels=["run"]
        )
        retries.add_metric(run, status["retries"])
        yield from (merges, retries)
        blocks = GaugeMetricFamily("pww_blocks", "Blocks by state.", labels=["run", "state"])
        for state in BLOCK_STATES:
            blocks.add_metric([*run, state], status["coverage"][state])  # type: ignore[literal-required]
        yield blocks
        for name, help_, value in (
            ("pww_committed_windows", "Windows in theta_outer.", status["committed_windows"]),
            ("pww_total_windows", "Windows of the run.", status["total_windows"]),
            ("pww_pending_deltas", "Deltas without a verdict.", status["pending_deltas"]),
            ("pww_complete", "1 when every block is in.", float(status["complete"])),
        ):
            gauge = GaugeMetricFamily(name, help_, labels=["run"])
            gauge.add_metric(run, value)
            yield gauge
        yield from self._members(run)

    def _members(self, run: list[str]) -> Iterable[Metric]:
        labels = ["run", "replica"]
        live = GaugeMetricFamily("pww_member_live", "1 for a live member.", labels=labels)
        seen = GaugeMetricFamily("pww_member_last_seen_seconds", "Silence.", labels=labels)
        rate = GaugeMetricFamily("pww_member_windows_per_second", "Speed.", labels=labels)
        done = CounterMetricFamily("pww_member_committed_blocks", "Blocks in.", labels=labels)
        for member in self._status["members"]:
            who = [*run, member["replica"]]
            live.add_metric(who, float(member["state"] == "live"))
            seen.add_metric(who, member["last_seen_s"])
            rate.add_metric(who, member["windows_per_s"])
            done.add_metric(who, member["committed"])
        yield from (live, seen, rate, done)
        for key, name, help_ in PHASE_GAUGES:
            gauge = GaugeMetricFamily(name, help_, labels=labels)
            for member in self._status["members"]:
                value = member["phase"][key]  # type: ignore[literal-required]
                gauge.add_metric([*run, member["replica"]], value)
            yield gauge


def exposition(status: Status) -> str:
    """The text that `GET /metrics` answers."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(status))
    return generate_latest(registry).decode()
