"""`python -m pww.status`: what the table shows of what a central says."""

import io
from typing import Any

from rich.console import Console

from pww.status import _rates, _rendered, _size

PHASE: dict[str, Any] = {
    "steps": 100, "seconds": 36.0, "tokens_per_s": 183_456.7, "loss": 3.21, "drift": 0.0123,
    "staleness": 1, "bytes": 5, "device": "H100", "tflops": 812.3, "mfu": 0.2053,
    "memory_bytes": 61_200_000_000, "wait_s": 0.0, "exchange_s": 0.0, "bytes_up": 2_840_000_000,
    "bytes_down": 1_420_000_000, "up_bytes_per_s": 60e6, "down_bytes_per_s": 110e6,
}  # fmt: skip
NOTHING = dict.fromkeys(PHASE, 0) | {"device": ""}


def status(**phase: Any) -> dict[str, Any]:
    member = {
        "replica": "snellius/a", "incarnation": "0123abcd", "state": "live", "last_seen_s": 1.0,
        "windows_per_s": 89.8, "committed": 1200, "phase": PHASE | phase,
        "leases": [{"id": 1, "start": 5, "stop": 9, "watermark": 9, "received": True}],
    }  # fmt: skip
    return {
        "run": "r", "round": 3, "merges": 3, "loss": 3.5, "tokens": 10, "complete": False,
        "left_s": 7200.0, "pending_deltas": 0, "members": [member],
        "coverage": {"blocks": 10, "committed": 4, "leased": 4, "unassigned": 2, "quarantined": 0},
    }  # fmt: skip


def shown(told: dict[str, Any]) -> list[str]:
    console = Console(file=io.StringIO(), width=240)
    console.print(_rendered(told))
    return console.file.getvalue().splitlines()


def test_every_column_is_there() -> None:
    lines = shown(status())
    head = next(line for line in lines if line.startswith("replica "))
    assert head.split() == [
        "replica", "state", "process", "seen", "lease", "H", "tokens/s", "MFU", "TFLOP/s", "memory",
        "loss", "drift", "stale", "up", "down", "rate", "blocks", "in",
    ]  # fmt: skip
    row = next(line for line in lines if line.startswith("snellius/a"))
    assert row.split("  ") != []
    for text in ("live", "0123abcd", "1 s", "5-9+", "100", "183,457", "20.5%", "812", "61.2 GB",
                 "3.210", "0.0123", "2.84 GB", "1.42 GB", "60 MB/s/110 MB/s", "1,200"):  # fmt: skip
        assert text in row, text
    assert any("2 h 0 min" in line for line in lines)


def test_what_nobody_measured_is_a_dash() -> None:
    row = next(line for line in shown(status(**NOTHING)) if line.startswith("snellius/a"))
    assert row.count(" - ") >= 6
    assert "%" not in row


def test_sizes_and_rates_have_a_unit() -> None:
    assert [_size(n) for n in (0, 1, 999, 1000, 61.2e9, 3e12, 4e15)] == [
        "-", "1 B", "999 B", "1 kB", "61.2 GB", "3 TB", "4e+03 TB"
    ]  # fmt: skip
    assert _rates(PHASE | {"up_bytes_per_s": 0.0}) == "-/110 MB/s"
