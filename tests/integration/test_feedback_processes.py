"""Error feedback between real processes: kills change nothing, and what stays behind is told."""

import sys
from pathlib import Path

import pytest
from conftest import NursedProject

sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))

from federation import Federation, mid_phase

from pww.central.audit import merged_deltas


@pytest.fixture
def federation(nursed: NursedProject, free_ports: tuple[int, int]) -> Federation:
    return Federation(nursed, free_ports, "codec=bf16")


def test_a_residual_goes_on_with_its_replica_and_the_rest_is_told(federation: Federation) -> None:
    central = federation.central()
    a = federation.site("a", STEP_S="0.05")
    a.until(lambda: mid_phase(federation, "a"))
    a.kill()
    again = federation.site("a", STEP_S="0")
    assert again.wait() == 0
    assert central.wait() == 0
    federation.check_exactly_once()
    assert "residual" not in central.text(), "the new process had it"
    assert "is dropped" not in again.text()
    outer = federation.rows("a", "outer")
    assert all(row["residual_norm"] > 0 for row in outer)  # type: ignore[operator]
    _, merged = merged_deltas(federation.project.outputs / "central")
    (left,) = federation.rows("a", "residual")
    assert left["why"] == "end"
    assert left["delta"] == [row["delta"] for row in outer if row["delta"] in merged][-1]
    (told,) = federation.rows("central", "residual")
    assert (told["replica"], told["delta"]) == ("local/a", left["delta"])
    assert told["norm"] == left["norm"] == outer[-1]["residual_norm"]
    assert "never sent   what encoding lost: norm" in again.text()
    assert "never sent, as encoding lost it at local/a: norm" in central.text()


def test_a_replica_that_left_for_good_is_told_at_the_end(federation: Federation) -> None:
    central = federation.central()
    a = federation.site("a", STEP_S="0.05")
    b = federation.site("b", STEP_S="0.05")
    b.until(lambda: federation.rows("b", "outer"))
    b.until(lambda: mid_phase(federation, "b"))
    b.kill()
    assert a.wait() == 0
    assert central.wait() == 0
    federation.check_exactly_once()
    assert {row["replica"] for row in federation.rows("central", "residual")} == {
        "local/a", "local/b",
    }  # fmt: skip
