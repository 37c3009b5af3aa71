"""The audit: green for a sound run, red when either side of the books is touched."""

import pytest

from pww.central.audit import audit, merged_deltas
from pww.errors import StateError
from pww.lease.space import BlockSpace


def finished(desk) -> None:
    """Two sites take everything, with a rejection, an expiry and a takeover on the way."""
    a, b = desk.site("s/a"), desk.site("s/b")
    a.contribute()
    desk.books.reject(b.deliver(b.acquire()).delta, "nan")
    a.acquire(ttl_s=1.0)
    desk.clock.advance(12.0)
    desk.books.tick()
    b = desk.site("s/b")
    pair = [a.deliver(a.acquire(5)), b.deliver(b.acquire(5))]
    desk.merge(*pair)
    a.prev, b.prev = pair[0].delta, pair[1].delta
    while not desk.books.exhausted():
        b.contribute(2)


def touch(desk, sql: str) -> None:
    with desk.ledger.transaction() as tx:
        assert tx.execute(sql) >= 1


def test_a_finished_run(desk) -> None:
    finished(desk)
    result = audit(desk.folder)
    assert result.ok
    assert (result.blocks, result.exactly_once, result.lost, result.doubled) == (20, 20, 0, 0)
    assert (result.leased, result.unleased, result.merges) == (0, 0, desk.books.round)
    shares = {share.replica: share.blocks for share in result.shares}
    assert shares == {m["replica"]: m["committed"] for m in desk.books.status()["members"]}
    text = result.render()
    assert "exactly once 20, lost 0, doubled 0" in text
    assert f"s/a: {shares['s/a']} blocks in 2 deltas" in text
    assert text.splitlines()[-1] == "ok"


def test_while_it_runs(desk) -> None:
    site = desk.site()
    site.contribute()
    site.acquire(4)
    site.deliver(site.acquire(1))
    result = audit(desk.folder)
    assert result.ok
    assert (result.exactly_once, result.leased, result.unleased, result.merges) == (3, 5, 12, 1)


def test_before_anything_was_leased(make_desk, two_epochs: BlockSpace) -> None:
    desk = make_desk(space=two_epochs, seeded=False)
    result = audit(desk.folder)
    assert result.ok
    assert (result.blocks, result.unleased, result.merges) == (40, 40, 0)


def test_in_the_run_folder_of_a_central(make_desk) -> None:
    desk = make_desk("central")
    finished(desk)
    assert audit(desk.folder.parent) == audit(desk.folder)


def test_merged_deltas_and_their_space(desk) -> None:
    finished(desk)
    space, deltas = merged_deltas(desk.folder)
    assert space == desk.space
    rows = desk.ledger.rows("SELECT delta FROM deltas WHERE outcome = 'merged'")
    assert deltas == {row[0] for row in rows}
    assert len(rows) == len(deltas) > 3


FIRST = "(SELECT delta FROM deltas WHERE outcome = 'merged' ORDER BY decided LIMIT 1)"


@pytest.mark.parametrize(
    ("sql", "lost", "doubled", "told"),
    [
        # a merged delta vanishes from its side
        (f"DELETE FROM deltas WHERE delta = {FIRST}", 3, 0, "committed, not merged: [0, 3)"),
        # a round vanishes: what it absorbed counts as lost
        ("DELETE FROM rounds WHERE round = 1", 3, 0, "on record are"),
        # a merged delta is said to be rejected
        (f"UPDATE deltas SET outcome = 'rejected' WHERE delta = {FIRST}", 3, 0, "committed, not"),
        # a delta is there twice
        (
            "INSERT INTO deltas (delta, replica, incarnation, staleness, offer, received_wall, "
            "outcome, round, decided) SELECT 'x', replica, incarnation, staleness, offer, "
            f"received_wall, outcome, round, 999 FROM deltas WHERE delta = {FIRST}",
            0,
            3,
            "merged, not committed: [0, 3)",
        ),
        # a delta names more than was committed
        (
            "UPDATE deltas SET offer = REPLACE(offer, '\"stop\": 3', '\"stop\": 4') "
            f"WHERE delta = {FIRST}",
            0,
            1,
            "merged, not committed: [0, 4)",
        ),
        # a delta is counted for another replica
        (
            f"UPDATE deltas SET offer = REPLACE(offer, 's/a', 's/z') WHERE delta = {FIRST}",
            0,
            0,
            "merged per replica",
        ),
        # the journal forgets a commit: the block could be leased again
        (
            "DELETE FROM lease_events WHERE seq = (SELECT MIN(seq) FROM lease_events "
            "WHERE body LIKE '%committed%')",
            0,
            3,
            "merged, not committed",
        ),
        # the journal gives a committed block back
        (
            "INSERT INTO lease_events (body, wall) VALUES "
            '(\'{"kind": "returned", "lease": 1, "reason": "expired"}\', 0)',
            0,
            0,
            "does not follow from the table's state",
        ),
        # the journal is not readable
        ("UPDATE lease_events SET body = '{' WHERE seq = 1", 0, 20, "lease journal: "),
        # the run's pointer is behind its rounds
        ("UPDATE run SET round = 1", 0, 0, "the run is at round 1, on record are"),
    ],
)
def test_it_goes_red(desk, sql: str, lost: int, doubled: int, told: str) -> None:
    finished(desk)
    assert audit(desk.folder).ok
    touch(desk, sql)
    result = audit(desk.folder)
    assert not result.ok
    assert (result.lost, result.doubled) == (lost, doubled)
    text = result.render()
    assert told in text
    assert text.splitlines()[-1] == "NOT ok"
    assert f"lost {lost}, doubled {doubled}" in text


def test_a_delta_that_cannot_be_read(desk) -> None:
    finished(desk)
    touch(desk, f"UPDATE deltas SET offer = '{{' WHERE delta = {FIRST}")
    with pytest.raises(StateError, match="holds a delta that cannot be read"):
        audit(desk.folder)


def test_no_run_no_audit(tmp_path, desk) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(StateError, match=f"no ledger in {empty}: name the folder of a run"):
        audit(empty)
    touch(desk, "DELETE FROM run")
    with pytest.raises(StateError, match="holds no run yet: start its central first"):
        audit(desk.folder)


def reclaimed(desk):
    """Three blocks are begun and lost twice: set aside. The other seventeen are merged."""
    desk.ledger.close()
    desk.darl = desk.darl.model_copy(update={"max_attempts": 2})
    desk.open()
    for number in range(2):
        site = desk.site()
        site.acquire(3, ttl_s=5.0, key=f"{900 + number:032x}")
        desk.clock.advance(11.0)
        desk.books.tick()
    other = desk.site("s/b")
    desk.merge(other.deliver(other.acquire(20)))


def test_quarantined_blocks_are_counted_and_named_and_not_lost(desk, monkeypatch) -> None:
    reclaimed(desk)
    result = audit(desk.folder)
    assert result.ok
    assert (result.exactly_once, result.lost, result.doubled) == (17, 0, 0)
    assert (result.quarantined, result.unleased) == (3, 0)
    assert result.quarantined_blocks == tuple(desk.space.block(p) for p in range(3))
    names = ", ".join(str(desk.space.block(p)) for p in range(3))
    assert "leased 0, unleased 0, quarantined 3" in result.render()
    assert f"quarantined blocks: {names}\n" in result.render()
    monkeypatch.setattr("pww.central.audit.NAMED", 2)
    assert "and 1 more" in audit(desk.folder).render()


def test_a_merged_block_that_is_quarantined_too_is_doubled(desk) -> None:
    reclaimed(desk)
    touch(desk, "UPDATE lease_events SET body = REPLACE(body, '\"stop\": 3', '\"stop\": 4') "
                "WHERE body LIKE '%uarantined%'")  # fmt: skip
    result = audit(desk.folder)
    assert not result.ok
    assert result.faults


def test_a_missing_round_is_a_gap(desk) -> None:
    site = desk.site()
    for _ in range(3):
        site.contribute()
    touch(desk, "DELETE FROM rounds WHERE round = 1")
    result = audit(desk.folder)
    assert "the run is at round 3, on record are 3 rounds" in result.faults
    touch(desk, "DELETE FROM rounds WHERE round = 0")
    assert "the run is at round 3, on record are 2 rounds" in audit(desk.folder).faults


def test_the_running_total_of_tokens_is_that_of_the_reports(desk) -> None:
    site = desk.site()
    for _ in range(3):
        site.contribute()
    reports = desk.books.reports()
    assert [report.round for report in reports] == [1, 2, 3]
    assert desk.books.reports(after=2) == reports[2:]
    totals = [desk.books.tokens_total(number) for number in range(4)]
    assert totals == [sum(r.tokens for r in reports[:number]) for number in range(4)]
