"""Whom an idle replica relieves, and of how much, so that both finish together."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pww.lease.held import Held


class Loot(NamedTuple):
    """The tail `[start, victim.stop)` changes hands; all of the victim when it starts there."""

    victim: Held
    start: int


def choose(
    leases: Iterable[Held], thief: str, *, num_blocks: int, rates: Mapping[str, float]
) -> Loot | None:
    """The tail of the lease that will finish last, None when no other replica has one to spare.

    A replica works through its leases in order of id, so a lease finishes after all that its
    replica has before and in it, at its rate. `rates` are windows (or any unit, the same for all)
    a second; a replica without one counts as the slowest known. With `r` the rates of thief and
    victim and `load` what is before the lease's end, `x` positions leave both with the same time
    when `x / r_thief = (load - x) / r_victim`. A position below a watermark is never taken.
    """
    known = {replica: rate for replica, rate in rates.items() if 0.0 < rate < float("inf")}
    slowest = min(known.values(), default=1.0)
    loads: dict[str, int] = {}
    latest: tuple[float, int, int] | None = None
    victim, victim_load = None, 0
    for held in sorted(leases):
        if held.pinned or held.replica == thief:
            continue
        load = loads[held.replica] = loads.get(held.replica, 0) + held.size
        if held.started:
            continue
        finish = (load / known.get(held.replica, slowest), held.stop - held.watermark, -held.id)
        if latest is None or finish > latest:
            latest, victim, victim_load = finish, held, load
    if victim is None:
        return None
    share = 0.5
    if thief in known and victim.replica in known:
        share = 1.0 / (1.0 + known[victim.replica] / known[thief])
    fair = max(1, int(victim_load * share))
    return Loot(victim, victim.stop - min(fair, num_blocks, victim.stop - victim.watermark))
