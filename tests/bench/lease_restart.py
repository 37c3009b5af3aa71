"""How long a coordinator takes from its ledger to serving, with a million journaled events.

The journal is written by the real coordinator, in batches as its HTTP side makes them; replicas
hold leases at the end and a tail of the journal is newer than the last snapshot.
"""

import json
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter

from figures import figure

from pww.central import state as central_state
from pww.central.coordinator import Coordinator
from pww.central.ledger import Ledger
from pww.clock import SystemClock
from pww.config.load import compose
from pww.lease.space import BlockSpace
from pww.wire import Acquire, Acquired, Granted, Register, Release

EVENTS = 1_000_000
REPLICAS = 64
SPACE = BlockSpace(
    num_windows=10**9, block_windows=1, seed=1, epochs=1, window_tokens=9, corpus="c" * 64
)


def opened(folder: Path) -> tuple[Ledger, Coordinator]:
    """The coordinator of the ledger in `folder`."""
    ledger = Ledger(folder / "ledger.sqlite")
    (synchronous,) = ledger.rows("PRAGMA synchronous")[0]
    (journal,) = ledger.rows("PRAGMA journal_mode")[0]
    if (synchronous, journal) != (2, "wal"):
        sys.exit(f"the ledger is not durable: {synchronous}, {journal}: no figures")
    darl = compose([]).darl
    return ledger, Coordinator(ledger, SPACE, darl=darl, aggregator_port=0, clock=SystemClock())


def journal(folder: Path, *, events: int = EVENTS) -> None:
    """Writes a ledger with that many lease events (a few more)."""
    ledger, books = opened(folder)
    who = [{"replica": f"s/r{i}", "incarnation": f"{i + 1:032x}"} for i in range(REPLICAS)]
    for each in who:
        books.register(
            Register(**each, node_key="", run="", space=SPACE.info(), model="a" * 64, last_round=0)
        )
    number, written = 0, 0
    while True:
        asked = []
        for each in who:
            number += 1
            asked.append(Acquire(**each, key=f"{number:032x}", num_blocks=3, ttl_s=60.0))
        leases = []
        for reply in books.answer(asked):
            assert isinstance(reply, Acquired)
            assert isinstance(reply.answer, Granted)
            leases.append(reply.answer.lease.id)
        written += REPLICAS
        if written >= events:
            break
        books.answer([Release(**w, leases=(x,)) for w, x in zip(who, leases, strict=True)])
        written += REPLICAS
    (found,) = ledger.rows("SELECT COUNT(*) FROM lease_events")[0]
    (snapshot,) = ledger.rows("SELECT seq FROM snapshot")[0]
    assert isinstance(found, int)
    assert isinstance(snapshot, int)
    assert found >= events
    assert 0 < found - snapshot <= central_state.SNAPSHOT_EVENTS + 256
    ledger.close()


def serving_s(folder: Path) -> float:
    """Seconds from opening the ledger to a coordinator that can answer."""
    begin = perf_counter()
    ledger, books = opened(folder)
    took_s = perf_counter() - begin
    assert books.status()["coverage"]["leased"] == 3 * REPLICAS
    ledger.close()
    return took_s


def restart_figure() -> None:
    """Prints `restart_s`, measured in a fresh process; nothing of it goes over a network."""
    print(json.dumps({"fsync": "WAL, synchronous=FULL"}), flush=True)
    with tempfile.TemporaryDirectory() as name:
        journal(Path(name))
        with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as fresh:
            took_s = min(fresh.submit(serving_s, Path(name)).result() for _ in range(3))
    figure("restart_s", took_s, "s", "< 2")


if __name__ == "__main__":
    restart_figure()
