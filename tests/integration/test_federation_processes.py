"""A real central and real sites as processes: what was drawn, merged and published, under kills
and bad input.

The inner loop is a closed form (tests/programs), so that NumPy can replay every round from the
draw logs alone.
"""

import json
import signal
import sys
import time
from pathlib import Path

import pytest
from conftest import NursedProject

sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))

from federation import QUICK, Federation, mid_phase, replay

from pww.central.audit import audit


@pytest.fixture
def federation(nursed: NursedProject, free_ports: tuple[int, int]) -> Federation:
    return Federation(nursed, free_ports)


def test_two_sites_end_and_every_theta_follows_from_the_draws(federation: Federation) -> None:
    central = federation.central()
    sites = [federation.site(name, STEP_S="0.02") for name in ("a", "b")]
    assert [site.wait() for site in sites] == [0, 0]
    assert central.wait() == 0
    federation.check_exactly_once()
    shares = audit(federation.project.outputs / "central").shares
    assert {share.replica for share in shares} == {"local/a", "local/b"}
    replay(federation)
    # both sites saw one theta each round
    hashes = [{r["round"]: r["state_hash"] for r in federation.rows(n, "eval")} for n in "ab"]
    for number in hashes[0].keys() & hashes[1].keys():
        assert hashes[0][number] == hashes[1][number]
    assert federation.rows("a", "outer")
    assert federation.rows("central", "eval")


def test_a_killed_site_delays_and_loses_nothing(federation: Federation) -> None:
    central = federation.central()
    a = federation.site("a", STEP_S="0.05")
    b = federation.site("b", STEP_S="0.05")
    b.until(lambda: mid_phase(federation, "b"))
    b.kill()
    assert a.wait() == 0
    assert central.wait() == 0
    federation.check_exactly_once()
    replay(federation)


def test_a_killed_site_goes_on_under_its_name(federation: Federation) -> None:
    central = federation.central()
    a = federation.site("a", STEP_S="0.05")
    a.until(lambda: mid_phase(federation, "a"))
    a.kill()
    steps = federation.rows("a", "outer")[-1]["step"]
    again = federation.site("a", STEP_S="0.0")
    assert again.wait() == 0
    assert central.wait() == 0
    federation.check_exactly_once()
    rows = federation.rows("a", "train")
    resumed = [r for r in rows if r["round"] >= 1 and r["step"] == steps + 1]  # type: ignore[operator]
    # the phase that was killed began after that step, and left no rows
    assert len(resumed) == 1


def test_the_central_is_killed_and_started_again(federation: Federation) -> None:
    central = federation.central()
    sites = [federation.site(name, STEP_S="0.05") for name in ("a", "b")]
    for wanted in (1, 3):
        central.until(lambda wanted=wanted: federation.merges() >= wanted)
        central.kill()
        central = federation.central()
    assert [site.wait() for site in sites] == [0, 0]
    assert central.wait() == 0
    federation.check_exactly_once()
    replay(federation)


def test_a_site_joins_late_and_shares_the_rest(federation: Federation) -> None:
    central = federation.central()
    a = federation.site("a", STEP_S="0.05")
    central.until(lambda: federation.merges() >= 2)
    late = federation.site("late", STEP_S="0.05")
    assert late.wait() == 0
    assert a.wait() == 0
    assert central.wait() == 0
    federation.check_exactly_once()
    first = federation.rows("late", "eval")[0]
    assert first["round"] >= 2  # type: ignore[operator]  # it got theta of now, not of the start


def test_without_a_central_a_site_says_so_waits_and_can_be_stopped(federation: Federation) -> None:
    a = federation.site("a", STEP_S="0.05")
    a.until(lambda: "central at http://127.0.0.1" in a.text())
    start = time.monotonic()
    a.signal(signal.SIGINT)
    assert a.wait(30) == 130
    assert time.monotonic() - start < 5
    assert "resume=" in a.text()
    # … and goes on as soon as there is one
    a = federation.site("a", STEP_S="0")
    a.until(lambda: a.text().count("central at http://127.0.0.1") >= 2)
    central = federation.central()
    assert a.wait() == 0
    assert central.wait() == 0
    federation.check_exactly_once()


def test_while_the_central_is_away_a_site_ends_its_lease_and_waits(federation: Federation) -> None:
    central = federation.central()
    a = federation.site("a", STEP_S="0.1")
    a.until(lambda: mid_phase(federation, "a"))
    central.kill()
    steps = federation.rows("a", "train")[-1]["phase_steps"]
    a.until(lambda: federation.rows("a", "train")[-1]["phase_step"] == steps)
    entries = list((federation.project.outputs / "a" / "checkpoints").glob("phase-??????"))
    a.until(lambda: json.loads((sorted(entries)[-1] / "entry.json").read_text()))
    a.signal(signal.SIGINT)
    assert a.wait(30) == 130
    # the delta is durable: it is delivered by the next process, not trained again
    central, again = federation.central(), federation.site("a")
    assert again.wait() == 0
    assert central.wait() == 0
    federation.check_exactly_once()


def test_a_second_process_with_one_replica_id_is_told_what_to_do(federation: Federation) -> None:
    central = federation.central()
    a = federation.site("a", STEP_S="0.1")
    a.until(lambda: mid_phase(federation, "a", round=0))
    twin = federation.site("a", name="twin")
    assert twin.wait(60) == 1
    assert "local/a is running already" in twin.text()
    assert "replica=" in twin.text()
    assert "Traceback" not in twin.text()
    assert a.process.poll() is None
    a.signal(signal.SIGTERM)
    central.signal(signal.SIGTERM)
    assert a.wait(30) == 130
    assert central.wait(30) == 130


def test_another_corpus_is_refused_with_both_values(federation: Federation) -> None:
    central = federation.central()
    odd = federation.site("odd", "data.max_windows=961")
    assert odd.wait(60) == 1
    assert "961" in odd.text()
    assert "960" in odd.text()
    assert "Traceback" not in odd.text()
    digests = [w for w in odd.text().replace(",", " ").split() if len(w.strip("();:")) == 64]
    assert len(set(digests)) >= 2
    central.signal(signal.SIGINT)
    assert central.wait(30) == 130


def test_a_nan_is_named_and_the_round_goes_on(federation: Federation) -> None:
    central = federation.central()
    a = federation.site("a", STEP_S="0.05")
    b = federation.site("b", STEP_S="0.05", NAN_PHASES="1")
    assert b.wait() == 0
    assert a.wait() == 0
    assert central.wait() == 0
    assert "local/b" in next(x for x in central.text().splitlines() if "rejected" in x)
    assert "weight" in b.text()
    federation.check_exactly_once()
    replay(federation)


def test_nan_after_nan_ends_the_site_not_the_run(federation: Federation) -> None:
    central = federation.central()
    a = federation.site("a", STEP_S="0.05")
    b = federation.site("b", STEP_S="0.05", NAN_PHASES="99")
    assert b.wait() == 1
    assert "optim.lr" in b.text()
    assert "Traceback" not in b.text()
    assert a.wait() == 0
    assert central.wait() == 0
    federation.check_exactly_once()


@pytest.mark.parametrize("which", [0, 1])
def test_a_taken_port_names_its_key(federation: Federation, which: int) -> None:
    import socket

    with socket.create_server(("127.0.0.1", federation.ports[which])):
        central = federation.central()
        assert central.wait(60) == 1
    assert ("central.port", "central.aggregator_port")[which] in central.text()
    assert "Traceback" not in central.text()


def test_a_second_central_and_a_complete_run_are_refused(federation: Federation) -> None:
    central = federation.central()
    a = federation.site("a")
    a.until(lambda: "round 0" in a.text())
    other = federation.project.start(
        "-m", "pww.central", *QUICK, "run.name=central", "central.port=1", name="other"
    )
    assert other.wait(60) == 1
    assert "in use" in other.text()
    assert a.wait() == 0
    assert central.wait() == 0
    again = federation.central()
    assert again.wait(60) == 1
    assert "complete" in again.text()
    assert "run.name" in again.text()
