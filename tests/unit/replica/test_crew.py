"""How ranks hear of errands: through the store where they met, and only while they stand."""

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import TCPStore

sys.path.insert(0, str(Path(__file__).parents[2] / "programs"))

from pww.clock import SystemClock
from pww.config.load import compose
from pww.replica import crew as crews
from pww.replica.carriers import carrier_of
from pww.replica.crew import Hand, Seal, StoreCrew, crew_of
from pww.transport.crew import Errand, Report
from pww.wire import Carriage

ERRAND = Errand(
    url="http://127.0.0.1:9", authorization="Bearer t", ca_pem="", path="/delta", digest="0" * 64,
    size_bytes=9, piece_bytes=1, missing=((0, 3), (5, 9)), share=1, of=3, timeout_s=1.0,
    deadline_s=1.0, min_streams=1, max_streams=2,
)  # fmt: skip
PATIENCE_S = 30.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crews, "LOOK_S", 0.01)


@pytest.fixture
def store() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=5))


@pytest.fixture
def seal(tmp_path: Path) -> Seal:
    return Seal.make(tmp_path / crews.KEY)


@pytest.fixture
def hand(store: TCPStore, seal: Seal, tmp_path: Path) -> Iterator[Hand]:
    own = Seal(tmp_path / crews.KEY)
    made = Hand(store.clone(), own, rank=1, clock=SystemClock())  # type: ignore[attr-defined]
    made.start()
    yield made
    made.close()
    assert not made._thread.is_alive()


def until(true: Callable[[], object]) -> None:
    clock, never = SystemClock(), threading.Event()
    for _ in range(int(PATIENCE_S / 0.01)):
        if true():
            return
        clock.wait(never, 0.01)
    raise AssertionError("never came to pass")


def test_shares_are_all_pieces_once() -> None:
    shares = [replace(ERRAND, share=share).pieces for share in range(3)]
    assert shares == [[0, 5, 8], [1, 6], [2, 7]]


def test_an_errand_is_heard_once_and_reported(
    store: TCPStore, hand: Hand, seal: Seal, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Errand] = []

    def carried(errand: Errand, *, rank: int, **_: Any) -> Report:
        heard.append(errand)
        return Report(rank, 7 * len(heard), 2, "no way" if len(heard) == 2 else "")

    looks: list[str] = []
    read = crews._read

    def looked(place: Any, own: Seal, key: str) -> Any:
        looks.append(key)
        return read(place, own, key)

    monkeypatch.setattr(crews, "carry", carried)
    monkeypatch.setattr(crews, "_read", looked)
    crew = StoreCrew(store, seal, size=2)
    assert crew.size == 2
    for number in (1, 2):
        errand = replace(ERRAND, share=number)
        asked = crew.begin([errand, replace(errand, share=9)])  # nobody listens as rank 2
        until(asked.reports)
        fault = "no way" if number == 2 else ""
        looks.clear()
        until(lambda: looks.count("pww/errand/1") > 2)  # it stands there still
        assert asked.reports() == [Report(1, 7 * number, 2, fault)]
        asked.end()
    assert heard == [replace(ERRAND, share=1), replace(ERRAND, share=2)]


def test_what_is_taken_back_is_given_up_and_the_next_is_heard(
    store: TCPStore, hand: Hand, seal: Seal, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = threading.Event(), threading.Event()

    def carried(errand: Errand, *, rank: int, **words: Any) -> Report:
        stop, meanwhile = words["stop"], words["meanwhile"]
        begun.set()
        while not stop.wait(0.01):
            meanwhile()
        ended.set()
        return Report(rank, 0, 0, "stopped")

    monkeypatch.setattr(crews, "carry", carried)
    crew = StoreCrew(store, seal, size=1)
    for _ in range(2):
        begun.clear()
        ended.clear()
        asked = crew.begin([ERRAND])
        assert begun.wait(PATIENCE_S)
        assert asked.reports() == []
        asked.end()
        assert ended.wait(PATIENCE_S)
    crew.begin([ERRAND])
    assert begun.wait(PATIENCE_S)  # in the middle of which the rank ends: the fixture closes it


def test_an_errand_that_was_over_before_it_was_heard_is_nobodys(
    store: TCPStore, seal: Seal
) -> None:
    crew = StoreCrew(store, seal, size=1)
    crew.begin([ERRAND]).end()
    hand = Hand(store.clone(), seal, rank=1, clock=SystemClock())  # type: ignore[attr-defined]
    hand.start()
    asked = crew.begin([ERRAND])
    until(asked.reports)
    (report,) = asked.reports()
    assert "No such file" in report.fault
    hand.close()


@pytest.mark.parametrize(
    ("words", "rank", "world", "made"),
    [
        (["site.outbound=all", "central.url=http://127.0.0.1:1"], 0, 4, 3),
        (["site.outbound=all", "central.url=http://127.0.0.1:1"], 2, 4, "hand"),
        (["site.outbound=all", "central.url=http://127.0.0.1:1"], 0, 1, None),
        (["site.outbound=all"], 0, 4, None),
        (["central.url=http://127.0.0.1:1"], 0, 4, None),
        (["central.url=http://127.0.0.1:1"], 1, 4, None),
    ],
)
def test_who_has_a_crew(
    store: TCPStore, tmp_path: Path, words: list[str], rank: int, world: int, made: object
) -> None:
    ranks: Any = SimpleNamespace(rank=rank, world=world, store=store.clone)  # type: ignore[attr-defined]
    before = threading.active_count()
    with ExitStack() as stack:
        crew = crew_of(compose(words), ranks, run=tmp_path, clock=SystemClock(), stack=stack)
        assert (tmp_path / crews.KEY).exists() == (made == 3)
        assert (None if crew is None else crew.size) == (None if made == "hand" else made)
        assert threading.active_count() - before == (made == "hand")
    assert threading.active_count() == before
    assert not list(tmp_path.iterdir())


def test_a_stranger_at_the_store_learns_no_token_and_sends_no_file(
    store: TCPStore, hand: Hand, seal: Seal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reaches the port may read and set keys: torch asks nobody who he is."""
    heard: list[Errand] = []

    def carried(errand: Errand, *, rank: int, **_: Any) -> Report:
        heard.append(errand)
        return Report(rank, 1, 0, "")

    monkeypatch.setattr(crews, "carry", carried)
    stranger = store.clone()  # type: ignore[attr-defined]
    row = {"number": 10**6, **asdict(replace(ERRAND, path="/etc/passwd"))}
    other = Seal.make(tmp_path / "other.key")
    crew = StoreCrew(store, seal, size=1)
    for forged in (json.dumps(row).encode(), other.closed(row), b"\xff", b"[]"):
        looks: list[str] = []
        read = crews._read
        with monkeypatch.context() as watched:
            watched.setattr(crews, "_read", lambda *a, at=looks, of=read: at.append("") or of(*a))
            stranger.set("pww/errand/1", forged)
            until(lambda at=looks: len(at) > 3)
        asked = crew.begin([ERRAND])  # the next one of rank 0's is heard all the same
        assert ERRAND.authorization.encode() not in stranger.get("pww/errand/1")
        until(asked.reports)
        stranger.set("pww/report/1", forged)
        assert asked.reports() == []
        asked.end()
    assert heard == [ERRAND] * 4
    assert (tmp_path / crews.KEY).stat().st_mode & 0o777 == 0o600


def test_a_carrier_to_the_blob_store_has_the_crew(store: TCPStore, seal: Seal) -> None:
    config, crew = compose(["central.url=http://127.0.0.1:1"]), StoreCrew(store, seal, size=1)
    carrier: Any = carrier_of(
        Carriage(codec="fp32", feedback=False, inline_mb=1, blob_port=2), config, run="r",
        authorize=lambda refused: "", clock=SystemClock(), stop=threading.Event(),
        random=None, tls=None, crew=crew,  # type: ignore[arg-type]
    )  # fmt: skip
    assert carrier._crew is crew
