"""The central's inbox: what came is handed on, rounds are written down once, nothing is left."""

import math
import sys
from itertools import accumulate
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "programs"))

from inbox_desk import Central, Site
from lone_replica import TOKENS

from pww.central import inbox as inbox_module
from pww.central.coordinator import Coordinator
from pww.central.inbox import CentralInbox
from pww.central.prometheus import exposition
from pww.errors import PayloadError, Refused, StateError
from pww.wire import (
    Exhausted,
    Gauges,
    HeldOutSet,
    PhaseMetrics,
)


@pytest.fixture
def central(tmp_path: Path):
    central = Central(tmp_path)
    yield central
    central.close()


@pytest.fixture
def sites(central: Central) -> list[Site]:
    sites = [central.join(f"local/{c}") for c in "ab"]
    sites[0].seed()
    return sites


def test_a_run_from_seed_to_end_is_written_down_round_by_round(central: Central, caplog) -> None:
    caplog.set_level("INFO", logger="pww.central")
    assert central.inbox.needs_seed()
    a, b = central.join("local/a"), central.join("local/b")
    assert {member.replica for member in central.inbox.live()} == {"local/a", "local/b"}
    assert not a.seed().exists(), "what came in is removed"
    assert not central.inbox.needs_seed()
    assert "theta(0) came from local/a" in caplog.text
    for _ in range(3):
        assert a.deliver(held_out=3.0, loss=2.0) is None
        central.inbox.tick()
        answer = b.acquire()
        if not isinstance(answer, Exhausted):
            assert b.deliver(lease=answer.lease, held_out=3.0, loss=4.0) is None
        central.inbox.tick()
    assert central.books.exhausted()
    assert not central.inbox.finished(), "somebody must be told first"
    a.leave()
    b.leave()
    central.inbox.tick()
    assert central.inbox.finished()
    outer = central.rows("outer")
    assert [row["round"] for row in outer] == [row["step"] for row in outer]
    assert [row["round"] for row in outer] == list(range(1, central.books.round + 1))
    assert [row["tokens"] for row in outer] == [
        sum(row["merge_tokens"] for row in outer[: n + 1]) for n in range(len(outer))
    ]
    assert outer[-1]["tokens"] == 42 * TOKENS
    assert {tuple(row["merged"]) for row in outer} <= {
        ("local/a",), ("local/b",), ("local/a", "local/b"),
    }  # fmt: skip
    assert caplog.text.count("blocks committed") == len(outer)
    assert "11 of 11 blocks committed" in caplog.text


def test_a_round_is_written_once_with_what_its_merge_said(central, sites) -> None:
    a, b = sites
    offers = [a.offer(loss=2.0), b.offer(loss=4.0)]
    for offer, path in offers:
        assert central.inbox.accept_offer(offer, path) is None
    for _ in range(3):
        central.inbox.tick()
    (row,) = central.rows("outer")
    assert (row["round"], row["tokens"], row["merge_tokens"], row["loss"]) == (1, 128, 128, 3.0)
    assert row["merged"] == ["local/a", "local/b"]
    assert row["agreement"] == pytest.approx(1.0)
    report = central.books.report()
    assert report is not None
    assert row["delta_norm"] == report.delta_norm


def test_held_out_losses_are_written_once_a_round(central, sites) -> None:
    a, b = sites
    a.deliver(held_out=3.0)
    b.deliver(held_out=3.5)
    central.inbox.tick()
    a.deliver()
    b.deliver(held_out=2.5)
    central.inbox.tick()
    rows = central.rows("eval")
    assert [(row["round"], row["loss"]) for row in rows] == [(0, 3.0), (1, 2.5)]
    assert [(row["step"], row["tokens"]) for row in rows] == [(0, 0), (1, 128)]
    assert rows[1]["perplexity"] == pytest.approx(12.182493960703473)
    assert rows[1]["held_out_tokens"] == 100


def test_who_is_turned_away_writes_nothing(central, sites) -> None:
    a, _ = sites
    offer, path = a.offer(held_out=99.0, incarnation="f" * 32)
    verdict = central.inbox.accept_offer(offer, path)
    assert verdict is not None
    assert (verdict.outcome, path.exists()) == ("rejected", False)
    offer, path = a.offer(held_out=99.0, base_round=50)
    verdict = central.inbox.accept_offer(offer, path)
    assert verdict is not None
    assert "the central is at 0" in verdict.reason
    assert central.rows("eval") == []
    a.deliver(held_out=3.0)
    assert [row["loss"] for row in central.rows("eval")] == [3.0]


def test_the_same_delta_again_is_one_delta(central, sites) -> None:
    a, b = sites
    held = b.acquire().lease  # a round that waits for b
    offer, path = a.offer(held_out=3.0)
    kept = path.read_bytes()
    assert central.inbox.accept_offer(offer, path) is None
    path.write_bytes(kept)
    assert central.inbox.accept_offer(offer, path) is None
    b.deliver(lease=held)
    central.inbox.tick()
    path.write_bytes(kept)
    verdict = central.inbox.accept_offer(offer, path)
    assert verdict is not None
    assert (verdict.outcome, verdict.round) == ("merged", 1)
    assert not path.exists()
    assert len(central.rows("eval")) == len(central.rows("outer")) == 1


def test_a_nan_that_sends_no_payload_has_its_verdict_at_once(central, sites) -> None:
    from pww.replica.outbox import NOTHING

    offer, _ = sites[0].offer(finite=False, payload=NOTHING)
    verdict = central.inbox.accept_offer(offer, None)
    assert verdict is not None
    assert (verdict.outcome, verdict.delta) == ("rejected", offer.delta)
    central.inbox.tick()
    assert central.rows("outer") == []


def test_an_offer_without_payload_removes_nobodys_upload(central, sites) -> None:
    discarded = []

    class Uploads:
        def take(self, info):
            raise AssertionError("nothing was carried")

        def discard(self, info):
            discarded.append(info)

        def sweep(self):
            pass

    inbox = CentralInbox(
        central.books, central.merger, central.metrics, clock=central.clock, address="http://x:1",
        carried=Uploads(),
    )  # fmt: skip
    others = sites[1].offer()[0].payload
    offer, _ = sites[0].offer(finite=False, payload=others)
    assert inbox.accept_offer(offer, None) is not None
    assert discarded == []


def test_a_fault_is_the_senders_and_costs_nothing(central, sites) -> None:
    a, _ = sites
    offer, path = a.offer(held_out=3.0)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(PayloadError, match="announced"):
        central.inbox.accept_offer(offer, path)
    assert central.rows("eval") == []
    path.write_bytes(whole)
    assert central.inbox.accept_offer(offer, path) is None
    assert [row["loss"] for row in central.rows("eval")] == [3.0]


def test_before_theta_0_a_delta_is_refused_and_a_phase_is_not_offered(central) -> None:
    a = central.join("local/a")
    offer, path = a.offer(held_out=3.0)
    with pytest.raises(Refused, match=r"before theta\(0\)"):
        central.inbox.accept_offer(offer, path)
    invitation, payload = central.inbox.invitation("local/a", "seed")
    assert (invitation.kind, payload) == ("seed", None)
    a.seed()
    invitation, payload = central.inbox.invitation("local/a", "phase")
    assert (invitation.round, invitation.run) == (0, central.books.run)
    assert payload is not None
    assert payload.stat().st_size == invitation.payload.size_bytes


def test_a_restart_goes_on_counting(central, sites) -> None:
    a, b = sites
    a.deliver(held_out=3.0)
    b.deliver()
    central.inbox.tick()
    central.reopen()
    a.deliver(held_out=2.0)
    b.deliver(held_out=2.1)
    central.inbox.tick()
    assert [row["tokens"] for row in central.rows("outer")] == [128, 240]
    assert [(row["round"], row["tokens"]) for row in central.rows("eval")] == [(0, 0), (1, 128)]


def test_rows_that_the_disk_refused_are_written_from_the_ledger(central, sites) -> None:
    a, b = sites
    for _ in range(2):
        a.deliver(held_out=3.0)
        b.deliver()
        central.inbox.tick()
    file = central.folder / "metrics.jsonl"
    whole = central.rows("outer")
    kept = [line for line in file.read_bytes().splitlines(True) if b'"outer"' in line]
    file.write_bytes(kept[1] + b"[]\n{}\n")  # of two rounds one row, and lines of nobody's
    central.reopen()
    assert sorted(central.rows("outer"), key=lambda row: row["round"]) == whole
    assert [row["tokens"] for row in whole] == list(
        accumulate(row["merge_tokens"] for row in whole)
    )
    a.deliver(held_out=3.0)
    b.deliver()
    central.inbox.tick()
    newest = central.rows("outer")[-1]
    assert newest["tokens"] == whole[-1]["tokens"] + newest["merge_tokens"]


def test_a_late_evaluation_counts_the_tokens_of_its_own_round(central, sites) -> None:
    a, b = sites
    late = b.acquire().lease
    a.deliver()
    central.clock.advance(2.0)
    central.inbox.tick()
    central.clock.advance(2.0)
    central.inbox.tick()
    assert central.books.round == 1
    b.deliver(lease=late, held_out=3.0, base_round=0)
    assert [(row["round"], row["tokens"]) for row in central.rows("eval")] == [(0, 0)]


def test_a_round_that_closed_just_before_a_death_is_written_by_the_next_process(
    central, sites
) -> None:
    a, b = sites
    for site in (a, b):
        site.deliver(held_out=3.0)
    central.inbox._merger.maybe_close()  # and the process dies before it writes the row
    assert central.rows("outer") == []
    central.reopen()
    (row,) = central.rows("outer")
    assert (row["round"], row["tokens"]) == (1, 128)
    central.reopen()
    a.deliver(held_out=3.0)
    b.deliver()
    central.inbox.tick()
    assert [row["round"] for row in central.rows("outer")] == [1, 2]
    assert [row["round"] for row in central.rows("eval")] == [0, 1]


def test_a_central_without_sites_says_how_one_joins(central, caplog) -> None:
    caplog.set_level("INFO", logger="pww")
    for _ in range(25):
        central.clock.advance(10.0)
        central.inbox.tick()
    said = [r.getMessage() for r in caplog.records if "no site is here" in r.getMessage()]
    assert len(said) == 8  # 250 s, one every 30 s
    assert said[0].endswith("python -m pww.train central.url=http://x:1")


@pytest.mark.parametrize("lost", ["deltas", "generations", "ledger.sqlite", "incoming", "."])
def test_a_state_folder_that_vanishes_ends_the_central_with_one_error(central, sites, lost) -> None:
    state = central.folder / "central"
    (state / "incoming").mkdir()
    inbox = CentralInbox(
        central.books, central.merger, central.metrics, clock=central.clock, address="http://x:1",
        folders=(state / "incoming", state / "ledger.sqlite"),
    )  # fmt: skip
    inbox.tick()
    (state / lost).rename(central.folder / "away")
    with pytest.raises(StateError, match=r"is gone while the central runs: .*Put the state folder"):
        inbox.tick()


def test_a_long_run_is_not_read_again_at_a_start(central, sites, monkeypatch) -> None:
    """Only rounds that may lack their row are asked for, and evaluations are let go of."""
    monkeypatch.setattr(inbox_module, "MANY", 2)
    a, _ = sites
    for _ in range(4):
        a.deliver(held_out=3.0)
        central.inbox.tick()
    rows = central.rows("outer")
    assert [row["tokens"] for row in rows] == list(accumulate(r["merge_tokens"] for r in rows))
    assert len(central.inbox._evaluated) <= 2
    asked = []
    reports = Coordinator.reports

    def watched(self, *, after):
        asked.append(after)
        return reports(self, after=after)

    monkeypatch.setattr(Coordinator, "reports", watched)
    central.reopen()
    assert asked == [2]
    assert central.rows("outer") == rows
    file = central.folder / "metrics.jsonl"
    kept = [
        line
        for line in file.read_bytes().splitlines(True)
        if b'"outer"' not in line or b'"round": 4' not in line
    ]
    file.write_bytes(b"".join(kept))
    assert len(central.rows("outer")) == 3
    central.reopen()
    assert central.rows("outer") == rows


def test_what_a_site_measured_is_in_the_rounds_row_the_status_and_the_metrics(
    central: Central, sites: list[Site]
) -> None:
    gauges = Gauges(
        device="H100", ranks=4, flops_per_s=1e15, peak_flops_per_s=4e15, memory_bytes=9,
        wait_seconds=1.5, exchange_seconds=2.5, bytes_up=100, bytes_down=70, up_bytes_per_s=5.0,
    )  # fmt: skip
    metrics = PhaseMetrics(
        steps=2, tokens=8 * TOKENS, loss=2.5, phase_seconds=2.0, tokens_per_s=32.0,
        held_out_loss=3.0, held_out_tokens=100, gauges=gauges,
        held_out_sets=(HeldOutSet(name="wiki", loss=4.0, tokens=50),),
    )  # fmt: skip
    for site in sites:
        site.deliver(metrics=metrics)
    central.inbox.tick()
    (outer,) = central.rows("outer")
    assert (outer["tokens_per_s"], outer["mfu_H100"]) == (64.0, 0.25)
    assert "mfu" not in outer
    (held_out,) = central.rows("eval")
    assert (held_out["loss_wiki"], held_out["tokens_wiki"]) == (4.0, 50)
    assert held_out["perplexity_wiki"] == pytest.approx(math.exp(4.0))
    status = central.books.status()
    phase = status["members"][0]["phase"]
    assert (phase["device"], phase["tflops"], phase["mfu"]) == ("H100", 1000.0, 0.25)
    assert phase["bytes_up"] == 100 + phase["bytes"], "with the delta that told it"
    assert (phase["bytes_down"], phase["memory_bytes"], phase["wait_s"]) == (70, 9, 1.5)
    text = exposition(status)
    assert 'pww_member_mfu{replica="local/a",run="' in text
    assert 'pww_member_tokens_per_second{replica="local/b"' in text
