"""Figures of the lease table: `python tests/bench/lease.py`, one JSON line each.

A pair is one grant, one pin and one commit, each decided and applied; what the wire would bring
(delta ids, named spans) is made before the clock starts. The table does nothing but compute, so
its clock is this process' CPU time, and the best of ten short runs counts: what else the machine
does only ever makes it slower.
"""

import json
import resource
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from time import process_time

from figures import figure, machine
from lease_http import http_figures
from lease_restart import restart_figure
from lease_share import share_figure

from pww.lease.events import Granted
from pww.lease.table import LeaseTable
from pww.wire import Leased, Span

RUNS = 10
PAIRS = 10_000
REPLICAS = [f"site{i}/a" for i in range(64)]


def pairs_per_s(num_positions: int, *, pairs: int = PAIRS) -> float:
    """Acquire+commit pairs a second through a table of so many positions, 64 replicas in turn."""
    pairs = min(pairs, num_positions)
    blocks = num_positions // pairs
    deltas = [f"{i:032x}" for i in range(pairs)]
    named = [(Leased(lease=i + 1, span=Span(i * blocks, (i + 1) * blocks)),) for i in range(pairs)]
    best = 0.0
    for _ in range(RUNS):
        table = LeaseTable(num_positions, epoch_positions=num_positions)
        begin = process_time()
        for i in range(pairs):
            replica, delta = REPLICAS[i % 64], deltas[i]
            for event in table.decide_grant(replica, num_blocks=blocks, ttl_s=60.0):
                table.apply(event, 0.0)
            for event in table.decide_pin(delta, replica=replica, spans=named[i], ttl_s=60.0):
                table.apply(event, 0.0)
            for event in table.decide_commit(delta):
                table.apply(event, 0.0)
        best = max(best, pairs / (process_time() - begin))
        table.verify()
        assert table.committed.total == pairs * blocks
    return best


def fragmented(*, fragments: int = 100_000, num_positions: int = 10**9) -> LeaseTable:
    """Every replica holds a lease, and committed and free positions alternate."""
    table = LeaseTable(num_positions, epoch_positions=num_positions)
    for replica in REPLICAS:
        for event in table.decide_grant(replica, num_blocks=100, ttl_s=60.0):
            table.apply(event, 0.0)
    kept = [held.id for held in table.leases()]
    blocks = num_positions // (fragments + 10)
    freed = []
    for i in range(fragments):
        replica = REPLICAS[i % 64]
        (grant,) = table.decide_grant(replica, num_blocks=blocks, ttl_s=60.0)
        assert isinstance(grant, Granted)
        table.apply(grant, 0.0)
        if i % 2:
            freed.append((replica, grant.lease))
            continue
        delta = f"{i:032x}"
        span = Leased(lease=grant.lease, span=Span(grant.start, grant.stop))
        for event in table.decide_pin(delta, replica=replica, spans=[span], ttl_s=60.0):
            table.apply(event, 0.0)
        for event in table.decide_commit(delta):
            table.apply(event, 0.0)
    for replica, lease in freed:
        for event in table.decide_return([lease], replica=replica, reason="expired"):
            table.apply(event, 0.0)
    table.verify()
    assert [held.id for held in table.leases()] == kept
    assert len(table.committed) + len(table.unassigned) >= fragments
    return table


def memory_mb() -> float:
    """Peak memory of a whole process whose table has 10^5 fragments, snapshot text included.

    The other half of the fragments are lapsed leases with attempts, so that those count too.
    """
    table = fragmented()
    assert len(json.dumps(table.dump())) > 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def load_s() -> float:
    """Seconds from a parsed snapshot of 10^5 fragments to a table."""
    dump = json.loads(json.dumps(fragmented().dump()))
    best = float("inf")
    for _ in range(RUNS):
        begin = process_time()
        LeaseTable.load(dump)
        best = min(best, process_time() - begin)
    return best


def fragmented_pairs_per_s() -> float:
    """Pairs a second where each takes one whole fragment of 10^5 and commits it between two."""
    table = fragmented()
    pairs = 20_000
    begin = process_time()
    for i in range(pairs):
        delta = f"{10**6 + i:032x}"
        (grant,) = table.decide_grant("site0/a", num_blocks=10**9, ttl_s=60.0)
        assert isinstance(grant, Granted)
        table.apply(grant, 0.0)
        span = Leased(lease=grant.lease, span=Span(grant.start, grant.stop))
        for event in table.decide_pin(delta, replica="site0/a", spans=[span], ttl_s=60.0):
            table.apply(event, 0.0)
        for event in table.decide_commit(delta):
            table.apply(event, 0.0)
    return pairs / (process_time() - begin)


def table_figures() -> None:
    """Prints the figures of the table alone."""
    pairs_goal = ">= 100000, flat in the number of positions"
    figure("pairs_per_s_1e4", pairs_per_s(10**4), "pairs/s", pairs_goal)
    figure("pairs_per_s_1e9", pairs_per_s(10**9), "pairs/s", pairs_goal)
    fresh = ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn"))
    with fresh as process:
        figure("memory_mb", process.submit(memory_mb).result(), "MB", "< 200")


if __name__ == "__main__":
    print(json.dumps({"machine": machine()}), flush=True)
    table_figures()
    restart_figure()
    with tempfile.TemporaryDirectory() as name:
        http_figures(Path(name))
    with tempfile.TemporaryDirectory() as name:
        share_figure(Path(name))
