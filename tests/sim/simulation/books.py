"""What the processes did, kept apart from what they say, and the laws that it must obey."""

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simulation import disk
from simulation.arithmetic import Arithmetic
from simulation.kernel import World

from pww.central.audit import audit
from pww.central.ledger import FILE
from pww.lease.space import BlockSpace
from pww.lease.transitions import Transitions
from pww.log import read_json_lines
from pww.wire import Lease, Offer, Verdict


class Books:
    """The simulation's own account of one run."""

    def __init__(self, world: World, *, folder: Path, space: BlockSpace, config: Any, batch: int):
        self._world, self._folder, self._space = world, folder, space
        self.sums = Arithmetic(world, space=space, config=config, batch=batch)
        self._coordinator: Any = None
        self._aggregator: Any = None
        self.round = -1
        self.life = 0  # of the central
        self.hashes: dict[int, str] = {}
        self.trained: list[tuple[str, int, str]] = []
        self.verdicts: dict[str, tuple[str, int]] = {}
        self.draws: dict[str, list[int]] = {}  # by delta, from the sites' draw logs
        self.num_draws = self.num_audits = 0
        self.strict_draws = True
        self.complete = False
        self.up = False  # the central's process lives: what its table says holds
        self.seen: Counter[str] = Counter()
        self.presented: dict[str, tuple[str, ...]] = {}  # by incarnation: deltas in its outbox
        self._keys: dict[str, int] = {}  # the lease of each idempotency key

    # --------------------------------------------------------------------------- as it happens

    @contextmanager
    def watching(self) -> Iterator[None]:
        """In the block, what happens to leases is counted."""
        real = Transitions.apply

        def apply(table: Transitions, event: Any, now_s: float) -> None:
            self.seen[f"{type(event).__name__} {getattr(event, 'reason', '')}".strip()] += 1
            real(table, event, now_s)

        Transitions.apply = apply  # type: ignore[method-assign]
        try:
            yield
        finally:
            Transitions.apply = real  # type: ignore[method-assign]

    def finished(self, replica: str) -> None:
        """A replica was told that the corpus is exhausted."""
        if self.up and not self._coordinator.exhausted():
            self._world.fail(f"{replica} ended, but not every block is in theta or set aside")

    def opened(self, coordinator: Any, aggregator: Any, *, life: int) -> None:
        """A process of the central serves."""
        self.life = life
        self._coordinator, self._aggregator, self.up = coordinator, aggregator, True
        if coordinator.generation:
            self.look()

    def look(self) -> None:
        """Notes theta of a round that was just published."""
        number = self._coordinator.round
        if not self._coordinator.generation or number == self.round:
            return
        if number != self.round + 1:
            self._world.fail(f"round {number} follows round {self.round}")
        self.round = number
        self.sums.published(number, self._aggregator.published.current, life=self.life)
        self.hashes[number] = self._coordinator.state_hash
        self._check_senders(number)
        self._world.trace(f"round {number} {self.hashes[number][:12]}")

    def _check_senders(self, number: int) -> None:
        """A merged delta is of its replica's living process, or was presented by it."""
        state = self._coordinator._state
        rows = state.ledger.rows(
            "SELECT delta, replica, incarnation FROM deltas WHERE outcome = 'merged' "
            "AND round = ?", number,
        )  # fmt: skip
        for delta, replica, incarnation in rows:
            now = state.seats[replica].member.incarnation
            self._check(
                incarnation == now or delta in self.presented.get(now, ()),
                f"round {number} took delta {delta} of a replaced process of {replica}",
            )

    def granted(self, key: str, lease: int) -> None:
        """An idempotency key was answered with a lease."""
        before = self._keys.setdefault(key, lease)
        if before != lease:
            live = {held.id for held in self._coordinator._state.table.leases()}
            self._check(before not in live, f"leases {before} and {lease} for one key {key}")
            self._keys[key] = lease

    def drew(self, site: Any, lease: Lease, offset: int, windows: list[int]) -> None:
        """A trainer fetched windows; nobody else may be authorised for them."""
        self.num_draws += len(windows)
        self._world.trace(f"{site.replica} draws {windows} of lease {lease.id}")
        if not lease.span.start <= lease.span.stop:
            self._world.fail(f"lease {lease.id} is empty")
        if not self.up or not self.strict_draws:
            return
        seat = self._coordinator._state.seats.get(site.replica)
        if seat is not None and seat.member.incarnation != site.incarnation:
            # it stood still, was replaced and has not heard of it yet: nothing of it can be merged
            self.seen["drawn after a takeover"] += len(windows)
            return
        table = self._coordinator._state.table
        positions = self._positions(lease, offset, len(windows))
        for held in table.leases():
            if held.id == lease.id:
                continue
            for position in positions:
                if held.span.start <= position < held.span.stop:
                    self._world.fail(
                        f"{site.replica} drew position {position} under lease {lease.id} when "
                        f"lease {held.id} of {held.replica} had it"
                    )
        for span in table.committed:
            for position in positions:
                if span.start <= position < span.stop:
                    self._world.fail(
                        f"{site.replica} drew position {position} under lease {lease.id}, it was "
                        "committed"
                    )

    def _positions(self, lease: Lease, offset: int, number: int) -> list[int]:
        """Positions of a lease that hold its windows `[offset, offset + number)`."""
        found, at = [], 0
        for position in range(lease.span.start, lease.span.stop):
            size = self._space.size(position)
            if at < offset + number and offset < at + size:
                found.append(position)
            at += size
        return found

    def trained_from(self, replica: str, number: int, state_hash: str) -> None:
        """A phase starts from a theta."""
        self.trained.append((replica, number, state_hash))

    def puts(self, lease: Lease, base_round: int, prev: str, began: int | str) -> None:
        """A phase goes into the outbox; it began from a round's theta, or went on after a delta."""
        self.sums.began[lease.id] = began
        if isinstance(began, str):
            self.seen["went on beside its delta"] += 1
        merged = self.verdicts.get(prev, ("", 0))[1]
        self._check(
            merged <= base_round,
            f"lease {lease.id} was trained for round {base_round}, its replica's delta {prev} was "
            f"merged in round {merged}",
        )

    def told(self, verdict: Verdict) -> None:
        """A replica learns a verdict; it never changes."""
        self._world.trace(f"told {verdict.delta[:8]} {verdict.outcome} {verdict.round}")
        now = (verdict.outcome, verdict.round)
        if verdict.outcome == "merged" and self.verdicts.setdefault(verdict.delta, now) != now:
            self._world.fail(f"delta {verdict.delta} was {self.verdicts[verdict.delta]}, now {now}")

    def keep_draws(self, site_folder: Path) -> None:
        """Reads a draw log before its folder is lost, or at the end."""
        for row in read_json_lines(site_folder / "draws.jsonl"):
            if "delta" in row:
                self.draws[str(row["delta"])] = list(row["windows"])  # type: ignore[call-overload]

    def audit(self) -> None:
        """The audit of the closed ledger, with each start of the central."""
        if not (self._folder / FILE).exists():
            return
        self.num_audits += 1
        try:
            result = disk.alone(lambda: audit(self._folder))
        except Exception as why:
            if "holds no run yet" in str(why) or "schema 0" in str(why):
                return
            self._world.fail(f"audit: {why}", why)
            return
        if not result.ok:
            self._world.fail(f"audit: {result.render()}")

    # ------------------------------------------------------------------------------- at the end

    def close(self) -> None:
        """Everything that can be said of the whole run."""
        self.audit()
        db = sqlite3.connect(self._folder / FILE)
        try:
            rounds = db.execute("SELECT round, state_hash FROM rounds ORDER BY round").fetchall()
            rows = db.execute(
                "SELECT delta, offer, staleness, outcome, round FROM deltas ORDER BY decided"
            ).fetchall()
            reasons = db.execute("SELECT delta, reason FROM deltas WHERE outcome = 'rejected'")
            for delta, reason in reasons:  # no disk of ours changes a byte by itself
                self._check("payload" not in reason, f"{delta} was rejected: {reason}")
        finally:
            db.close()
        self._check(
            [number for number, _ in rounds] == list(range(len(rounds))),
            f"rounds on record: {[number for number, _ in rounds]}",
        )
        for number, state_hash in rounds:
            self._check(self.hashes.get(number) == state_hash, f"hash of round {number} changed")
        for replica, number, state_hash in self.trained:
            self._check(
                self.hashes.get(number) == state_hash,
                f"{replica} trained from another theta of round {number}",
            )
        fates = {delta: (outcome, number) for delta, _, _, outcome, number in rows}
        for delta, told in self.verdicts.items():
            self._check(
                fates.get(delta) == told, f"{delta}: told {told}, booked {fates.get(delta)}"
            )
        self._check_chains(rows)
        merged = [
            (number, Offer.model_validate_json(offer), staleness)
            for _, offer, staleness, outcome, number in rows
            if outcome == "merged"
        ]
        self._check_draws([offer for _, offer, _ in merged])
        self.sums.check(merged, last=self.round)
        self.seen.update(self.sums.seen)

    def _check(self, holds: bool, text: str) -> None:
        if not holds:
            self._world.fail(text)

    def _check_chains(self, rows: list[Any]) -> None:
        """Each merged delta was encoded on its replica's one before, or without a residual."""
        last: dict[str, str] = {}
        for _, text, _, outcome, number in rows:
            offer = Offer.model_validate_json(text)
            if outcome != "merged":
                continue
            tip = last.get(offer.replica, "")
            self._check(
                offer.prev in ("", tip),
                f"round {number} took {offer.delta}, encoded on {offer.prev}, after {tip}",
            )
            last[offer.replica] = offer.delta

    def _check_draws(self, merged: list[Offer]) -> None:
        """Exactly once, from what was drawn for merged deltas."""
        drawn: Counter[int] = Counter()
        for offer in merged:
            windows = self.draws.get(offer.delta)
            if windows is None:
                self._world.fail(f"merged delta {offer.delta} was never drawn")
                return
            expected = sorted(
                w
                for leased in offer.spans
                for p in range(leased.span.start, leased.span.stop)
                for w in self._space.windows(p)
            )
            self._check(sorted(windows) == expected, f"{offer.delta} drew {windows}")
            drawn.update(windows)
        if self.complete:
            expected = Counter(range(self._space.num_windows))
            for w in expected:
                expected[w] = self._space.epochs
            for span in self._coordinator._state.table.quarantined:
                for position in range(span.start, span.stop):
                    expected.subtract(self._space.windows(position))
            wrong = {w: drawn[w] for w in expected if drawn[w] != expected[w]}
            self._check(not wrong, f"windows in theta another number of times than once: {wrong}")
