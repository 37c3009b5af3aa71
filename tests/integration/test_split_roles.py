"""Coordinator and aggregator as two processes over one run folder, with real sites: the same runs
to the bit, whichever of the two is killed, and whoever is started first.
"""

import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import httpx
import pytest
from conftest import Child, NursedProject

sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))

from split import Split, SplitKiller

from pww.central import credentials
from pww.clock import SystemClock
from pww.demo import free_ports
from pww.transport.tls import client_context

KILLS, KILLS_A_RUN = 10, 10


def federation(nursed: NursedProject, *overrides: str) -> Split:
    leases, flower = free_ports(2)
    return Split(nursed, (leases, flower), *overrides)


def stopped(process: Child) -> str:
    """What it said, after a SIGTERM that it obeyed."""
    os.kill(process.process.pid, signal.SIGTERM)
    assert process.wait(30) == 130, process.said()
    assert "Traceback" not in process.said()
    return process.said()


@pytest.mark.timeout(600)
def test_either_is_killed_ten_times(nursed: NursedProject) -> None:
    killed, hits, seed = Counter[str](), Counter[str](), 0
    while killed.total() < KILLS:
        run = federation(nursed, "data.max_windows=480")
        told = SplitKiller(run, seed).run(min(KILLS_A_RUN, KILLS - killed.total()), ("a", "b"))
        run.check()
        assert told.killed.total(), "a run in which nobody is killed shows nothing"
        merges = [row["round"] for row in run.rows("central", "outer")]
        assert merges == list(range(1, len(merges) + 1)), "a row for each round, once"
        killed, hits, seed = killed + told.killed, hits + told.hits, seed + 1
        run.clear()
    print(f"{dict(killed)} in {seed} runs hit {dict(hits)}")
    assert min(killed["coordinator"], killed["aggregator"]) >= 3


def test_the_life_of_a_run_in_two_processes_with_keys(nursed: NursedProject) -> None:
    """Who comes first waits; a second site waits; stops, a new secret, a revocation, the end."""
    keys, clock = nursed.outputs / "keys", SystemClock()
    replicas = ["local/a", "elsewhere/b"]
    credentials.init(keys, hosts=[], replicas=replicas, port=29510, clock=clock)
    run = federation(nursed, "data.max_windows=800")
    with_keys = "central.security.keys=outputs/keys"
    aggregator = run.role("aggregator", with_keys)
    aggregator.until(lambda: "no coordinator runs on this run folder" in aggregator.said())
    assert "central.roles=[coordinator] and otherwise the same command" in aggregator.said()
    assert "stopped while the coordinator of outputs/central did not" in stopped(aggregator)

    coordinator = run.role("coordinator", with_keys)
    coordinator.until(lambda: " serves " in coordinator.said())
    odd = run.role("aggregator", with_keys, "diloco.outer.lr=0.5")
    assert odd.wait(60) == 2
    assert "diloco.outer.lr=0.5: the coordinator of this run has 0.7" in odd.said()

    # of two sites that come to a coordinator alone one joins, the other one waits, and says why
    def site(replica: str) -> Child:
        name, _, own = replica.partition("/")
        return run.site(
            own, f"site.name={name}", f"central.url=https://127.0.0.1:{run.ports[0]}",
            f"central.bundle=outputs/keys/bundles/{name}", STEP_S="0.08",
        )  # fmt: skip

    a = site("local/a")
    coordinator.until(lambda: shown(run)["members"])
    b = site("elsewhere/b")
    b.until(lambda: "HTTP 503: site elsewhere cannot join local yet" in b.said())
    assert "central.roles=[aggregator]; the site waits for it" in b.said()
    assert [member["replica"] for member in shown(run)["members"]] == ["local/a"]

    aggregator = run.role_again("aggregator")
    aggregator.until(lambda: len(shown(run)["members"]) == 2 and run.merges() >= 1)
    for port, path in ((run.ports[0], "acquire"), (run.ports[1], "fleet/pull-messages")):
        assert asked(run, "POST", f"https://127.0.0.1:{port}/v1/{path}", "none").status_code == 401
    for process in (aggregator, coordinator):
        assert "stopped at round" in stopped(process)

    aggregator, coordinator = (run.role_again(role) for role in ("aggregator", "coordinator"))
    known = run.merges()
    aggregator.until(lambda: run.merges() > known)
    coordinator.kill()
    (run.state / "session.secret").unlink()
    coordinator = run.role_again("coordinator")
    known = run.merges()
    aggregator.until(lambda: run.merges() >= known + 2)  # sessions are opened anew at both
    credentials.revoke(keys, replica="elsewhere/b")
    assert b.wait(60) == 1
    assert "elsewhere/b was revoked" in b.said() or "is not the key of" in b.said()
    assert a.wait() == 0
    assert [aggregator.wait(60), coordinator.wait(60)] == [0, 0]
    assert "elsewhere/b takes part no more" in aggregator.said()

    run.check()
    final = json.loads((run.state.parent / "final" / "theta.json").read_text())
    assert final["round"] == run.merges() == run.rows("central", "outer")[-1]["round"]
    for process in (coordinator, aggregator, run.role_again("coordinator"),
                    run.role_again("aggregator")):  # fmt: skip
        process.wait(60)
        assert "is complete" in process.said()
        assert "Traceback" not in process.said()


def asked(run: Split, method: str, url: str, token: str) -> httpx.Response:
    """What a port answers over TLS."""
    tls = client_context((run.project.outputs / "keys" / "ca.pem").read_text())
    with httpx.Client(verify=tls, trust_env=False, timeout=20) as client:
        return client.request(method, url, headers={"authorization": f"Bearer {token}"})


def shown(run: Split) -> dict:
    """The status, at the address and with the keys that the state folder names."""
    told = json.loads((run.state / "central.json").read_text())
    token = (Path(told["keys"]) / "operator.token").read_text()
    answer = asked(run, "GET", f"{told['url']}/status", token)
    assert answer.status_code == 200
    return answer.json()
