"""Coordinator and aggregator as two processes over one run folder, with real sites: the same runs
to the bit, whichever of the two is killed, and whoever is started first.
"""

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from conftest import Project, _environment

sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))

from kills import Nursery, Sprout
from split import Split, SplitKiller

from pww.central import credentials
from pww.clock import SystemClock
from pww.demo import free_ports
from pww.transport.tls import client_context

KILLS, KILLS_A_RUN = 10, 10


@pytest.fixture(scope="module")
def nursery(project_copy: Path) -> Iterator[Nursery]:
    made = Nursery(project_copy, _environment(project_copy))
    yield made
    made.close()


def federation(nursery: Nursery, project: Project, *overrides: str) -> Split:
    leases, flower = free_ports(2)
    return Split(nursery, project, (leases, flower), *overrides)


@pytest.mark.timeout(600)
def test_either_is_killed_ten_times(nursery: Nursery, project: Project) -> None:
    killed, hits, seed = Counter[str](), Counter[str](), 0
    while killed.total() < KILLS:
        run = federation(nursery, project, "data.max_windows=960")
        told = SplitKiller(run, seed).run(min(KILLS_A_RUN, KILLS - killed.total()), ("a", "b"))
        run.check()
        assert told.killed.total(), "a run in which nobody is killed shows nothing"
        merges = [row["round"] for row in run.rows("central", "outer")]
        assert merges == list(range(1, len(merges) + 1)), "a row for each round, once"
        killed, hits, seed = killed + told.killed, hits + told.hits, seed + 1
        run.clear()
    print(f"{dict(killed)} in {seed} runs hit {dict(hits)}")
    assert min(killed["coordinator"], killed["aggregator"]) >= 3


def test_whoever_comes_first_waits_and_nobody_is_there_twice(
    nursery: Nursery, project: Project
) -> None:
    run = federation(nursery, project, "data.max_windows=480")
    aggregator = run.role("aggregator")
    aggregator.until(lambda: "no coordinator runs on this run folder" in aggregator.text())
    assert "central.roles=[coordinator]" in aggregator.text()
    aggregator.kill()

    coordinator = run.role("coordinator")
    coordinator.until(lambda: " serves " in coordinator.text())
    first, other = run.site("a", STEP_S="0.02"), run.site("b", "site.name=elsewhere", STEP_S="0.02")
    whole = run.central("central.port=1", "central.aggregator_port=2")
    assert whole.wait(60) == 1
    assert "is in use by another process: another central (or its coordinator)" in whole.text()

    # of two sites that come to a coordinator alone one joins, the other one waits, and says why
    sites = {"local": first, "elsewhere": other}
    Sprout.until(first, lambda: waiting(sites), 60)
    late = waiting(sites)
    assert "HTTP 503: site" in sites[late].text()
    assert "central.roles=[aggregator]; the site waits for it" in sites[late].text()
    told = shown(project)
    (member,) = told["members"]
    assert member["replica"].partition("/")[0] != late
    assert told["round"] == 0

    aggregator = run.role("aggregator")
    assert [site.wait() for site in (first, other)] == [0, 0]
    assert aggregator.wait(60) == 0
    assert coordinator.wait(60) == 0
    run.check()
    final = json.loads((run.state.parent / "final" / "theta.json").read_text())
    assert final["round"] == run.merges()
    for process in (aggregator, coordinator):
        assert "is complete" in process.text()
        assert "Traceback" not in process.text()
    for role in ("coordinator", "aggregator"):
        again = run.role(role)
        assert again.wait(60) == 1
        assert "is complete" in again.text()


def waiting(sites: dict[str, Sprout]) -> str:
    """The site that waits, "" while none does."""
    return next((name for name, site in sites.items() if f"site {name} cannot" in site.text()), "")


def shown(project: Project) -> dict:
    """What `pww.status` says of the newest central."""
    done = project.run("-m", "pww.status", "json=true")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_other_settings_are_named_and_a_stop_stops(nursery: Nursery, project: Project) -> None:
    run = federation(nursery, project)
    coordinator = run.role("coordinator")
    coordinator.until(lambda: " serves " in coordinator.text())
    odd = run.role("aggregator", "diloco.outer.lr=0.5")
    assert odd.wait(60) == 2
    assert "diloco.outer.lr=0.5: the coordinator of this run has 0.7" in odd.text()
    aggregator = run.role("aggregator")
    aggregator.until(lambda: " serves " in aggregator.text())
    for process in (aggregator, coordinator):
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(30) == 130
        assert "stopped at round 0" in process.text()
    waits = run.role("aggregator")
    waits.until(lambda: "no coordinator runs" in waits.text())
    os.kill(waits.pid, signal.SIGTERM)
    assert waits.wait(30) == 130
    for text in (coordinator.text(), aggregator.text(), waits.text(), odd.text()):
        assert "Traceback" not in text


def test_keys_and_revocation_hold_at_both_and_a_new_secret_is_followed(
    nursery: Nursery, project: Project
) -> None:
    keys, clock = project.outputs / "keys", SystemClock()
    replicas = ["local/a", "local/b"]
    credentials.init(keys, hosts=[], replicas=replicas, port=29510, clock=clock)
    run = federation(nursery, project, "central.security.keys=outputs/keys", "data.max_windows=720")
    coordinator, aggregator = run.role("coordinator"), run.role("aggregator")
    guarded = (
        f"central.url=https://127.0.0.1:{run.ports[0]}", "central.bundle=outputs/keys/bundles/local"
    )  # fmt: skip
    a = run.site("a", "central.security.keys=none", *guarded, STEP_S="0.06")
    b = run.site("b", "central.security.keys=none", *guarded, STEP_S="0.06")
    tls = client_context((keys / "ca.pem").read_text())
    aggregator.until(lambda: run.merges() >= 1)
    with httpx.Client(verify=tls, trust_env=False) as client:
        for port, path in ((run.ports[0], "acquire"), (run.ports[1], "fleet/pull-messages")):
            answer = client.post(f"https://127.0.0.1:{port}/v1/{path}", content=b"")
            assert answer.status_code == 401
    coordinator.kill()
    (run.state / "session.secret").unlink()
    coordinator = run.role_again("coordinator")
    known = run.merges()
    aggregator.until(lambda: run.merges() >= known + 2)
    credentials.revoke(keys, replica="local/b")
    assert b.wait(60) == 1
    assert "local/b was revoked" in b.text() or "is not the key of" in b.text()
    assert a.wait() == 0
    assert [aggregator.wait(60), coordinator.wait(60)] == [0, 0]
    run.check_exactly_once()
    assert "local/b takes part no more" in aggregator.text()
    for process in (a, b, aggregator, coordinator):
        assert "Traceback" not in process.text()
    assert (run.state / "books").stat().st_mode & 0o777 == 0o700
