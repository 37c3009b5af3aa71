"""kill -9 of the central at 50 points of three-site runs, and of a site in the middle of a phase:
no block is lost or doubled, and theta is that of an undisturbed run with the same verdicts.

Processes are forked from one that has imported everything (tests/programs/nursery.py), so that a
restart takes a second and not ten. `tests/bench/kills.py` kills a thousand times.
"""

import sys
from collections import Counter
from pathlib import Path

import pytest
from conftest import NursedProject

sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))

from kills import Killer, Nursed

from pww.central.audit import audit
from pww.demo import free_ports
from pww.transport.tensorfile import state_hash

KILLS, KILLS_A_RUN = 50, 17


def ports() -> tuple[int, int]:
    leases, flower = free_ports(2)
    return leases, flower


@pytest.mark.timeout(900)
def test_the_central_is_killed_fifty_times(nursed: NursedProject) -> None:
    survived, hits, seed = 0, Counter[str](), 0
    while survived < KILLS:
        federation = Nursed(nursed, ports())
        told = Killer(federation, seed).run(min(KILLS_A_RUN, KILLS - survived))
        federation.check()
        assert told.killed, "a run that is not killed once shows nothing"
        survived, hits, seed = survived + told.killed, hits + told.hits, seed + 1
        federation.clear()
    print(f"{survived} kills in {seed} runs hit {dict(hits)}")
    assert {"starting", "merging", "a delta is staged"} <= set(hits)


def test_a_site_is_killed_at_step_4_of_10(nursed: NursedProject) -> None:
    """Alone in its run, so that the verdicts are the same whatever its speed: so is every bit."""
    hashes, momenta = [], []
    for killed in (False, True):
        federation = Nursed(
            nursed, ports(), "darl.block_windows=8", "diloco.inner_steps=10",
            "data.max_windows=390",
        )  # fmt: skip
        central = federation.central()
        a = federation.site("a", STEP_S="0.1" if killed else "0.0")

        def at_step_4(federation: Nursed = federation) -> bool:
            rows = federation.rows("a", "train")
            return bool(rows) and (rows[-1]["round"], rows[-1]["phase_step"]) == (2, 4)

        if killed:
            a.until(at_step_4)
            a.kill()
            last = federation.rows("a", "train")[-1]
            assert (last["round"], last["phase_step"], last["phase_steps"]) == (2, 4, 10)
            a = federation.site("a", STEP_S="0.0")
        assert a.wait() == 0
        assert central.wait() == 0
        federation.check()
        books = audit(federation.state)
        assert (books.merges, books.blocks) == (10, 49)
        last_round = federation.state / "generations" / "round-000010"
        hashes.append(state_hash(last_round / "theta.safetensors"))
        momenta.append(state_hash(last_round / "momentum.safetensors"))
        federation.clear()
    assert hashes[0] == hashes[1]
    assert momenta[0] == momenta[1]
