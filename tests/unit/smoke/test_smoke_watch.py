"""A rank that does not come through a stage in time says where it is, and ends."""

import threading
from pathlib import Path

import pytest

from pww.clock import ManualClock
from pww.smoke import watch as watching
from pww.smoke.watch import Watch


class Slow(ManualClock):
    """Goes on only while it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may = threading.Event()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        self.may.wait(30)
        return super().wait(event, timeout_s)


def test_a_stage_that_takes_too_long_ends_the_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended, codes = threading.Event(), list[int]()
    clock = Slow()

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    watch = Watch(tmp_path, 3, clock=clock, end=end)
    assert watch.stage == "meeting"
    watch.now("replicas")
    clock.may.set()
    assert ended.wait(30)
    assert codes == [1]
    assert clock.monotonic() == pytest.approx(
        watching.BOUNDS_S["replicas"] + watching.MOMENT_S, abs=1
    )
    (line,) = (tmp_path / "faults" / "3").read_text().splitlines()
    assert line.startswith("replicas: rank 3 was not through after 120 s, it is at ")
    assert ".py:" in line
    assert "test_a_stage_that_takes_too_long" in capsys.readouterr().err


def test_nothing_is_bound_once_it_is_over(tmp_path: Path) -> None:
    clock, codes = Slow(), list[int]()
    watch = Watch(tmp_path, 0, clock=clock, end=codes.append)
    watch.close()
    clock.may.set()
    for thread in threading.enumerate():
        if thread.name == "watch":
            thread.join(30)
    assert codes == []
    assert list(tmp_path.iterdir()) == []
