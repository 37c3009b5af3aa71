"""The table against a naive model with one entry for each position, under any sequence."""

import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import event as note
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from naive_leases import ASIDE, DONE, FREE, REPLICAS, Naive

from pww.errors import LeaseError
from pww.lease.events import Event, Granted, from_record, to_record
from pww.lease.table import LeaseTable
from pww.wire import Leased, Span


def bounds(spots: set[int]) -> tuple[int, int]:
    assert spots == set(range(min(spots), max(spots) + 1)), "a lease is one run"
    return min(spots), max(spots) + 1


class Machine(RuleBasedStateMachine):
    """Every decision of the table, applied, journaled and checked."""

    @initialize(
        epoch=st.integers(1, 12), epochs=st.integers(1, 3), limit=st.sampled_from([0, 1, 2])
    )
    def start(self, epoch: int, epochs: int, limit: int) -> None:
        self.size, self.epoch, self.limit = epoch * epochs, epoch, limit
        self.table = self.new()
        self.model = Naive(self.size, epoch, limit)
        self.now_s = 0.0
        self.journal: list[tuple[dict[str, Any], float]] = []
        self.snapshots: list[tuple[int, str]] = []
        self.num_deltas = 0

    def new(self) -> LeaseTable:
        return LeaseTable(self.size, epoch_positions=self.epoch, max_attempts=self.limit)

    def apply(self, events: tuple[Event, ...]) -> None:
        for event in events:
            self.table.apply(event, self.now_s)
            self.journal.append((to_record(event), self.now_s))

    def pick(self, data: st.DataObject) -> tuple[int, str]:
        """A lease, mostly one that is not over, and a replica, mostly its own."""
        alive = sorted(i for i, one in self.model.leases.items() if one.life != "over")
        some = alive if alive and data.draw(st.integers(0, 4)) else sorted(self.model.leases)
        lease = data.draw(st.sampled_from(some), label="lease")
        own = data.draw(st.integers(0, 4), label="own")
        replica = self.model.leases[lease].replica
        return lease, replica if own else data.draw(st.sampled_from(REPLICAS), label="replica")

    # ------------------------------------------------------------------ positions change hands

    @rule(
        replica=st.sampled_from(REPLICAS),
        blocks=st.integers(1, 6),
        ttl_s=st.integers(1, 9),
        ahead=st.booleans(),
    )
    def grant(self, replica: str, blocks: int, ttl_s: int, ahead: bool) -> None:
        events = self.table.decide_grant(
            replica, num_blocks=blocks, ttl_s=float(ttl_s), ahead=ahead
        )
        self.apply(events)
        num_aside = self.model.owner.count(ASIDE)
        spots = self.model.next_spots(blocks)
        if self.model.owner.count(ASIDE) > num_aside:
            note("quarantined")
        assert any(isinstance(event, Granted) for event in events) == bool(spots)
        if spots:
            id_ = self.model.grant(replica, spots, self.now_s + ttl_s, float(ttl_s))
            self.model.leases[id_].may = set() if ahead else set(spots)

    @rule(
        thief=st.sampled_from(REPLICAS),
        blocks=st.integers(1, 6),
        rates=st.dictionaries(st.sampled_from(REPLICAS), st.integers(0, 8), max_size=3),
    )
    def steal(self, thief: str, blocks: int, rates: dict[str, int]) -> None:
        events = self.table.decide_steal(thief, num_blocks=blocks, ttl_s=6.0, rates=rates)
        spare = self.model.spare(thief)
        assert bool(events) == bool(spare)
        if not spare:
            return
        known = {replica: rate for replica, rate in rates.items() if rate}
        slowest = min(known.values(), default=1)

        def finish(id_: int) -> Fraction:
            rate = known.get(self.model.leases[id_].replica, slowest)
            return Fraction(self.model.load(id_), rate)

        victim, loot = events[0].lease, events[-1]  # type: ignore[union-attr]
        assert isinstance(loot, Granted)
        assert finish(victim) == max(map(finish, spare)), "the one that finishes last"
        load, num = self.model.load(victim), loot.stop - loot.start
        mine, theirs = known.get(thief, 0), known.get(self.model.leases[victim].replica, 0)
        fair = Fraction(load * mine, mine + theirs) if mine and theirs else Fraction(load, 2)
        top = min(blocks, len(spare[victim]))
        assert 1 <= num <= top
        assert num == 1 or num <= fair, "the thief does not finish after its victim"
        assert num == top or num + 1 > fair, "and as early as possible"
        note("stolen whole" if len(self.model.leases[victim].spots) == num else "stolen tail")
        self.apply(events)
        robbed = self.model.leases[victim]
        stolen = set(sorted(robbed.spots)[-num:])
        for spot in stolen:
            self.model.owner[spot] = FREE
        robbed.spots -= stolen
        if not robbed.spots:
            robbed.life = "over"
        id_ = self.model.grant(thief, stolen, self.now_s + 6.0, 6.0)
        self.model.leases[id_].may = set(stolen)

    @rule(seconds=st.integers(0, 6))
    def expire(self, seconds: int) -> None:
        self.now_s += seconds
        self.apply(self.table.decide_expiry(self.now_s))
        for id_, one in self.model.live().items():
            if not one.pinned and one.deadline_s <= self.now_s:
                self.model.give_back(id_, "expired")

    @precondition(lambda self: self.model.leases)
    @rule(
        data=st.data(),
        reason=st.sampled_from(["released", "left", "taken over", "rejected"]),
    )
    def give_back(self, data: st.DataObject, reason: Any) -> None:
        lease, replica = self.pick(data)
        events = self.table.decide_return([lease, lease], replica=replica, reason=reason)
        one = self.model.leases[lease]
        his = one.life == "live" and one.replica == replica and not one.pinned
        assert len(events) == his
        self.apply(events)
        if his:
            self.model.give_back(lease, reason)

    @precondition(lambda self: any(one.life == "lapsed" for one in self.model.leases.values()))
    @rule(data=st.data())
    def revive(self, data: st.DataObject) -> None:
        lease, replica = self.pick(data)
        events = self.table.decide_revive([lease, lease], replica=replica, ttl_s=5.0)
        one = self.model.leases[lease]
        his = one.life == "lapsed" and one.replica == replica
        assert len(events) == his
        self.apply(events)
        if his:
            note("revived")
            self.model.revive(lease, self.now_s + 5.0, 5.0)

    # ------------------------------------------------------------------ what a holder is promised

    @precondition(lambda self: self.model.leases)
    @rule(data=st.data())
    def authorise(self, data: st.DataObject) -> None:
        lease, replica = self.pick(data)
        others = data.draw(st.lists(st.sampled_from(sorted(self.model.leases)), max_size=3))
        leases = [lease, *others]
        events = self.table.decide_raise(leases, replica=replica)
        raised = {
            i for i in set(leases) & self.model.live(replica).keys()
            if self.model.leases[i].spots != self.model.leases[i].may
        }  # fmt: skip
        assert len(events) == len(raised)
        self.apply(events)
        for i in raised:
            self.model.leases[i].may |= self.model.leases[i].spots

    @precondition(lambda self: self.model.live())
    @rule(data=st.data(), ttl_s=st.integers(0, 20))
    def renew(self, data: st.DataObject, ttl_s: int) -> None:
        lease = data.draw(st.sampled_from(sorted(self.model.live())), label="lease")
        one = self.model.leases[lease]
        events = self.table.decide_promise(lease, ttl_s=float(ttl_s))
        assert bool(events) == (ttl_s > one.promised_s)
        if events:
            with pytest.raises(LeaseError, match="make the promise durable first"):
                self.table.renew(lease, ttl_s=float(ttl_s), now_s=self.now_s)
            one.promised_s = 1.25 * ttl_s
        self.apply(events)
        self.table.renew(lease, ttl_s=float(ttl_s), now_s=self.now_s)
        one.deadline_s = max(one.deadline_s, self.now_s + ttl_s)

    # -------------------------------------------------------------------- a delta and its verdict

    @precondition(lambda self: self.model.leases)
    @rule(data=st.data(), wrong=st.sampled_from([0, 0, 0, 1]))
    def pin(self, data: st.DataObject, wrong: int) -> None:
        lease, replica = self.pick(data)
        mine = sorted(i for i, one in self.model.leases.items() if one.replica == replica)
        others = st.lists(st.sampled_from(mine or [lease]), max_size=2)
        leases = [lease, *data.draw(others, label="others")]
        named = {i: bounds(self.model.leases[i].spots or {0}) for i in leases}
        start, stop = named[leases[0]]
        named[leases[0]] = (start, stop + wrong)
        spans = [Leased(lease=i, span=Span(*named[i])) for i in leases]
        ones = [self.model.leases[i] for i in leases]
        ok = (
            len(set(leases)) == len(leases)
            and not wrong
            and all(one.replica == replica and not one.pinned for one in ones)
            and all(one.life in ("live", "lapsed") for one in ones)
            and all(one.spots <= one.may for one in ones)
        )
        delta = f"{self.num_deltas:032x}"
        if not ok:
            with pytest.raises(LeaseError):
                self.table.decide_pin(delta, replica=replica, spans=spans, ttl_s=5.0)
            return
        self.num_deltas += 1
        self.apply(self.table.decide_pin(delta, replica=replica, spans=spans, ttl_s=5.0))
        for lease, one in zip(leases, ones, strict=True):
            if one.life == "lapsed":
                note("revived by a delta")
                self.model.revive(lease, self.now_s + 5.0, 5.0)
            one.pinned = delta

    @precondition(lambda self: any(one.pinned for one in self.model.live().values()))
    @rule(data=st.data(), outcome=st.sampled_from(["merge", "reject", "keep"]))
    def verdict(self, data: st.DataObject, outcome: str) -> None:
        pinned = {i: one for i, one in self.model.live().items() if one.pinned}
        delta = data.draw(st.sampled_from(sorted({one.pinned for one in pinned.values()})))
        leases = sorted(i for i, one in pinned.items() if one.pinned == delta)
        if outcome == "merge":
            events = self.table.decide_commit(delta)
        else:
            events = self.table.decide_reject(delta, keep=leases if outcome == "keep" else [])
        assert [event.lease for event in events] == leases  # type: ignore[union-attr]
        self.apply(events)
        for lease in leases:
            if outcome == "merge":
                self.model.commit(lease)
            elif outcome == "reject":
                self.model.give_back(lease, "rejected")
            else:
                self.model.leases[lease].pinned = ""

    # ---------------------------------------------------------------------------------- restarts

    @rule()
    def restart(self) -> None:
        """From a snapshot; every live lease has what it was promised."""
        text = json.dumps(self.table.dump())
        self.table = LeaseTable.load(json.loads(text), max_attempts=self.limit)
        self.snapshots.append((len(self.journal), text))
        self.table.restore(now_s=self.now_s, grace_s=0.0)
        for one in self.model.live().values():
            assert self.now_s + one.promised_s >= one.deadline_s, "the holder loses nothing"
            one.deadline_s = self.now_s + one.promised_s

    @invariant()
    def lawful(self) -> None:
        if hasattr(self, "table"):
            self.table.verify()

    @invariant()
    def same_as_the_model(self) -> None:
        if not hasattr(self, "table"):
            return
        table, model = self.table, self.model
        got = [FREE] * self.size
        for spans, value in ((table.committed, DONE), (table.quarantined, ASIDE)):
            for span in spans:
                got[span.start : span.stop] = [value] * len(span)
        live = {held.id: held for held in table.leases()}
        assert live.keys() == model.live().keys()
        for held in live.values():
            one = model.leases[held.id]
            got[held.start : held.stop] = [held.id] * held.size
            assert (held.replica, held.pinned) == (one.replica, one.pinned)
            assert bounds(one.spots) == (held.start, held.stop)
            assert set(range(held.start, held.watermark)) == one.may & one.spots
            left_s = table.remaining_s(held.id, self.now_s)
            assert left_s == max(0.0, one.deadline_s - self.now_s)
        assert got == model.owner
        assert [table.attempts.count(p) for p in range(self.size)] == model.tries
        assert table.committed_by == {r: n for r, n in model.count.items() if n}
        assert table.complete == all(o in (DONE, ASIDE) for o in model.owner)
        assert table.leased == sum(o > 0 for o in model.owner)

    @invariant()
    def no_position_is_drawn_by_two_holders(self) -> None:
        """Whoever was ever told that he may start work on a position keeps it until he ends."""
        if not hasattr(self, "table"):
            return
        drawn: dict[int, int] = {}
        for held in self.table.leases():
            for spot in self.model.leases[held.id].may:
                assert drawn.setdefault(spot, held.id) == held.id
                assert held.start <= spot < held.stop

    def teardown(self) -> None:
        """The journal alone leads to the same table, and so does any snapshot with the rest."""
        if not hasattr(self, "table"):
            return
        for first, text in ((0, json.dumps(self.new().dump())), *self.snapshots):
            again = LeaseTable.load(json.loads(text), max_attempts=self.limit)
            for record, now_s in self.journal[first:]:
                again.apply(from_record(json.loads(json.dumps(record))), now_s)
            again.verify()
            assert again.dump() == self.table.dump()


Machine.TestCase.settings = settings(max_examples=300, stateful_step_count=50, deadline=None)
TestTable = Machine.TestCase
