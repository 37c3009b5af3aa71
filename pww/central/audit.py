"""The audit: is every block in theta exactly once, counted from merged deltas, not the lease table.

Two sides that never share a number are compared: the spans that merged deltas name (table `deltas`
joined with `rounds`), and the commits of the lease journal with the table that it replays to. A
block is *lost* when no merged delta covers it and no replica can lease it any more; *doubled* when
two merged deltas cover it, or one does and it can still be leased or is quarantined. Time is linear
in the journal; in memory are the merged spans and the table.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from pww.central.ledger import FILE, Ledger, intact
from pww.central.state import NAMED
from pww.errors import LeaseError, StateError
from pww.lease.events import Committed, from_record
from pww.lease.space import BlockSpace
from pww.lease.table import LeaseTable
from pww.wire import Offer, SpaceInfo, Span

CAN_BE_LEASED = 2**32
"""Weight of an interval that is leased or in the pool, far above any number of merged deltas."""
SET_ASIDE = 2**40
"""Weight of a quarantined interval."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one replica contributed."""

    replica: str
    blocks: int
    deltas: int


@dataclass(frozen=True, slots=True)
class Audit:
    """The outcome; all counts but `merges` are of blocks (positions of all epochs)."""

    run: str
    blocks: int
    exactly_once: int
    lost: int
    doubled: int
    leased: int
    unleased: int
    quarantined: int
    quarantined_blocks: tuple[int, ...]  # ids of the first, by position
    merges: int
    shares: tuple[Share, ...]
    faults: tuple[str, ...]  # where the two sides of the books differ

    @property
    def ok(self) -> bool:
        """Nothing lost, nothing doubled, and both sides of the books agree."""
        return not (self.lost or self.doubled or self.faults)

    def render(self) -> str:
        """The outcome for people."""
        lines = [
            f"run {self.run}: {self.blocks} blocks, {self.merges} merges",
            f"exactly once {self.exactly_once}, lost {self.lost}, doubled {self.doubled}",
            f"leased {self.leased}, unleased {self.unleased}, quarantined {self.quarantined}",
            *self._named(),
            *(f"  {s.replica}: {s.blocks} blocks in {s.deltas} deltas" for s in self.shares),
            *(f"books differ: {fault}" for fault in self.faults),
            "ok" if self.ok else "NOT ok",
        ]
        return "\n".join(lines)

    def _named(self) -> list[str]:
        """The quarantined blocks, for people."""
        if not self.quarantined:
            return []
        more = self.quarantined - len(self.quarantined_blocks)
        rest = f" and {more} more" if more else ""
        return [f"quarantined blocks: {', '.join(map(str, self.quarantined_blocks))}{rest}"]


@dataclass(frozen=True, slots=True)
class _Merged:
    """One span that a merged delta names."""

    delta: str
    replica: str
    lease: int
    span: Span
    base_round: int
    round: int


def audit(folder: Path) -> Audit:
    """Audits the run in `folder`, while its central runs or afterwards.

    Raises:
        StateError: there is no ledger, or none that can be read.
    """
    with reading(folder) as ledger:
        run, space = _run(ledger)
        merged = _merged(ledger)
        merges = cast(int, ledger.rows("SELECT COUNT(*) FROM rounds WHERE round > 0")[0][0])
        faults = _round_faults(ledger)
        table, commits = _replay(ledger, space, faults)
    _compare(merged, commits, faults)
    spans = [(each.span, 1) for each in merged]
    spans += [(span, CAN_BE_LEASED) for span in table.unassigned]
    spans += [(held.span, CAN_BE_LEASED) for held in table.leases()]
    spans += [(span, SET_ASIDE) for span in table.quarantined]
    once = lost = doubled = 0
    for width, depth in _depths(spans, space.num_positions):
        covered, elsewhere = depth % CAN_BE_LEASED, depth >= CAN_BE_LEASED
        if covered > 1 or (covered and elsewhere):
            doubled += width
        elif covered:
            once += width
        elif not elsewhere:
            lost += width
    blocks = Counter[str]()
    for each in merged:
        blocks[each.replica] += len(each.span)
    deltas = Counter(replica for replica, _ in {(each.replica, each.delta) for each in merged})
    if dict(blocks) != table.committed_by:
        faults.append(f"merged per replica {dict(blocks)}, committed {table.committed_by}")
    return Audit(
        run=run,
        blocks=space.num_positions,
        exactly_once=once,
        lost=lost,
        doubled=doubled,
        leased=table.leased,
        unleased=table.unassigned.total,
        quarantined=table.quarantined.total,
        quarantined_blocks=space.first_blocks(table.quarantined, at_most=NAMED),
        merges=merges,
        shares=tuple(Share(r, blocks[r], deltas[r]) for r in sorted(blocks)),
        faults=tuple(faults),
    )


def block_lines(folder: Path) -> Iterator[str]:
    """One line a block, in the order of positions: what absorbed it, or where it is.

    Raises:
        StateError: there is no ledger, or none that can be read.
    """
    with reading(folder) as ledger:
        _, space = _run(ledger)
        fates = [
            (each.span.start, each.span.stop,
             f"{each.replica}, lease {each.lease}, round {each.base_round} -> {each.round}")
            for each in _merged(ledger)
        ]  # fmt: skip
        table, _ = _replay(ledger, space, [])
    fates += [
        (held.start, held.stop, f"leased to {held.replica}, lease {held.id}")
        for held in table.leases()
    ]
    fates += [(span.start, span.stop, "unleased") for span in table.unassigned]
    fates += [(span.start, span.stop, "quarantined") for span in table.quarantined]
    for start, stop, fate in sorted(fates):
        for position in range(start, stop):
            yield f"position {position}  block {space.block(position)}  {fate}"


def merged_deltas(folder: Path) -> tuple[BlockSpace, frozenset[str]]:
    """The index space of the run in `folder`, and the ids of the deltas that were merged.

    Raises:
        StateError: there is no ledger, or none that can be read.
    """
    with reading(folder) as ledger:
        _, space = _run(ledger)
        return space, frozenset(each.delta for each in _merged(ledger))


@contextmanager
def reading(folder: Path) -> Iterator[Ledger]:
    """The ledger of a run folder, or of the state folder in it, as of one moment.

    Raises:
        StateError: there is none, or it cannot be read.
    """
    inner = folder / "central" / FILE
    ledger = Ledger.read_only(inner if inner.is_file() else folder / FILE)
    try:
        with ledger.snapshot(), intact(ledger.path):
            yield ledger
    finally:
        ledger.close()


def _run(ledger: Ledger) -> tuple[str, BlockSpace]:
    rows = ledger.rows("SELECT run, space FROM run")
    if not rows:
        raise StateError(f"ledger {ledger.path} holds no run yet: start its central first")
    info = SpaceInfo.model_validate_json(str(rows[0][1]))
    return str(rows[0][0]), BlockSpace.from_info(info)


def _merged(ledger: Ledger) -> list[_Merged]:
    """Every span of every delta that a round on record absorbed."""
    merged = []
    try:
        for text, number in ledger.each(
            "SELECT deltas.offer, deltas.round FROM deltas "
            "JOIN rounds ON deltas.round = rounds.round WHERE deltas.outcome = 'merged' "
            "AND rounds.report IS NOT NULL ORDER BY deltas.decided"
        ):
            offer = Offer.model_validate_json(str(text))
            for leased in offer.spans:
                merged.append(
                    _Merged(
                        offer.delta, offer.replica, leased.lease, leased.span, offer.base_round,
                        cast(int, number),
                    )
                )  # fmt: skip
    except ValueError as why:
        raise StateError(
            f"ledger {ledger.path} holds a delta that cannot be read ({why}): restore a copy"
        ) from why
    return merged


def _round_faults(ledger: Ledger) -> list[str]:
    """Gaps in the rounds, and deltas merged into a round that is not on record."""
    faults = []
    current = cast(int, ledger.rows("SELECT round FROM run")[0][0])
    count, first, last = ledger.rows("SELECT COUNT(*), MIN(round), MAX(round) FROM rounds")[0]
    if count and (count, first, last) != (current + 1, 0, current):
        faults.append(f"the run is at round {current}, on record are {count} rounds")
    for (delta,) in ledger.rows(
        "SELECT delta FROM deltas WHERE outcome = 'merged' "
        "AND round NOT IN (SELECT round FROM rounds WHERE report IS NOT NULL)"
    ):
        faults.append(f"delta {delta} was merged into a round that is not on record")
    return faults


def _replay(
    ledger: Ledger, space: BlockSpace, faults: list[str]
) -> tuple[LeaseTable, list[Committed]]:
    """The table that the journal leads to, and its commits; damage becomes a fault."""
    table = LeaseTable(space.num_positions, epoch_positions=space.num_blocks)
    commits = []
    try:
        for (body,) in ledger.each("SELECT body FROM lease_events ORDER BY seq"):
            event = from_record(json.loads(str(body)))
            if isinstance(event, Committed):
                commits.append(event)
            table.apply(event, 0.0)
        table.verify()
    except (LeaseError, ValueError) as why:
        faults.append(f"lease journal: {why}")
    return table, commits


def _compare(merged: list[_Merged], commits: list[Committed], faults: list[str]) -> None:
    """Every span of a merged delta was committed for it, and nothing else was."""
    from_deltas = Counter(
        (each.delta, each.replica, each.lease, each.span.start, each.span.stop) for each in merged
    )
    from_journal = Counter((e.delta, e.replica, e.lease, e.start, e.stop) for e in commits)
    for what, rest in (
        ("merged, not committed", from_deltas - from_journal),
        ("committed, not merged", from_journal - from_deltas),
    ):
        for delta, replica, lease, start, stop in rest:
            faults.append(f"{what}: [{start}, {stop}), lease {lease}, delta {delta} of {replica}")


def _depths(spans: Iterable[tuple[Span, int]], num_positions: int) -> Iterable[tuple[int, int]]:
    """Runs of positions with the summed weight of the spans over them, in order, 0 included."""
    steps: Counter[int] = Counter({0: 0, num_positions: 0})
    for span, weight in spans:
        steps[span.start] += weight
        steps[span.stop] -= weight
    depth, at = 0, 0
    for position in sorted(steps):
        if position > at:
            yield position - at, depth
            at = position
        depth += steps[position]
