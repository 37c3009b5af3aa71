"""Uploads by several ranks: exact whatever the others do; nothing travels twice without need."""

import json
import logging
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "programs"))

from bad_http import BadHttp, Forward, Reply, Request
from blob_desk import PIECE, QUICK, Desk, Hasty, made
from gatehouse import Gatehouse

from pww.central import credentials
from pww.clock import Clock, SystemClock
from pww.errors import Stopped
from pww.transport import blob_crew
from pww.transport.blob import BlobCarrier
from pww.transport.blob_crew import carry
from pww.transport.crew import Errand, Report

SIZE = 40 * PIECE + 99


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    opened = Desk.open(tmp_path / "store")
    yield opened
    opened.close()


class Helpers:
    """A crew of threads. What `spoil` makes of an errand is what a rank hears; None: nothing."""

    def __init__(self, size: int, *, spoil=lambda rank, errand: errand) -> None:  # type: ignore[no-untyped-def]
        self.size, self.spoil = size, spoil
        self.came: list[Report] = []
        self.ended, self.halt, self.times = 0, threading.Event(), 0
        self.threads: list[threading.Thread] = []

    def begin(self, errands: Sequence[Errand]) -> "Helpers":
        self.times += 1
        assert len(errands) == self.size
        for rank, errand in enumerate(errands, start=1):
            heard = self.spoil(rank, errand)
            if heard is not None:
                told = json.loads(json.dumps(asdict(heard)))  # it has to survive a journey
                told["missing"] = tuple(map(tuple, told["missing"]))
                assert Errand(**told) == heard
                self.threads.append(threading.Thread(target=self.work, args=(rank, heard)))
                self.threads[-1].start()
        return self

    def work(self, rank: int, errand: Errand) -> None:
        report = carry(
            errand, rank=rank, clock=SystemClock(), random=np.random.default_rng(rank),
            stop=self.halt, meanwhile=lambda: None,
        )  # fmt: skip
        self.came.append(report)

    def reports(self) -> list[Report]:
        return list(self.came)

    def end(self) -> None:
        self.ended += 1
        self.halt.set()
        for thread in self.threads:
            thread.join()


def carrier(url: str, crew: Helpers, *, clock: Clock = SystemClock(), **words) -> BlobCarrier:  # type: ignore[no-untyped-def]
    return BlobCarrier(
        url, clock=clock, stop=words.pop("stop", threading.Event()),
        random=np.random.default_rng(0), tuning=QUICK, crew=crew, **words,
    )  # fmt: skip


def arrived(desk: Desk, path: Path, digest: str) -> None:
    found = desk.store.path(digest)
    assert found is not None
    assert found.read_bytes() == path.read_bytes()


def test_every_rank_sends_its_share_and_every_piece_travels_once(
    desk: Desk, tmp_path: Path
) -> None:
    path, info = made(tmp_path, 1, size_bytes=SIZE)
    crew, sent = Helpers(3), Counter[str]()

    def count(request: Request, forward: Forward) -> Reply:
        if request.method == "PUT":
            sent[request.target] += 1
        return forward(request)

    with BadHttp(desk.server.port, count) as proxy:
        client = carrier(proxy.url, crew)
        client.put(path, info)
    arrived(desk, path, info.digest)
    assert (len(sent), set(sent.values())) == (41, {1})
    assert (crew.times, crew.ended) == (1, 1)
    assert sorted((r.rank, r.bytes_up, r.fault) for r in crew.came) == [
        (rank, 10 * PIECE, "") for rank in (1, 2, 3)
    ]
    moved = client.transfers()
    assert (moved.num_up, moved.bytes_up, moved.retries) == (1, info.size_bytes, 0)


def test_a_small_upload_and_one_that_is_there_ask_nobody(desk: Desk, tmp_path: Path) -> None:
    crew = Helpers(3)
    path, info = made(tmp_path, 2, size_bytes=31 * PIECE)
    for _ in range(2):
        carrier(desk.url, crew).put(path, info)
    arrived(desk, path, info.digest)
    assert crew.times == 0


def elsewhere(rank: int, errand: Errand) -> Errand:
    return replace(errand, path="/nowhere/delta") if rank == 2 else errand


def no_way_out(rank: int, errand: Errand) -> Errand:
    closed = replace(errand, url="http://127.0.0.1:9", deadline_s=0.1)
    return closed if rank == 2 else errand


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (elsewhere, "No such file or directory: '/nowhere/delta'"),
        (no_way_out, "Connection refused"),
    ],
)
def test_what_a_rank_cannot_bring_is_sent_by_the_first(
    desk: Desk, tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil, text: str
) -> None:  # type: ignore[no-untyped-def]
    path, info = made(tmp_path, 3, size_bytes=SIZE)
    client = carrier(desk.url, Helpers(3, spoil=spoil))
    client.put(path, info)
    arrived(desk, path, info.digest)
    (told,) = [
        r.getMessage() for r in caplog.records if "did not bring its share" in r.getMessage()
    ]
    assert told.startswith("rank 2 did not bring its share of the upload (")
    assert text in told
    assert client.transfers().bytes_up == info.size_bytes


def test_a_rank_that_says_nothing_is_not_waited_for(
    desk: Desk, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It died, say; by the clock of the first rank, which here runs a thousand times as fast."""
    path, info = made(tmp_path, 4, size_bytes=SIZE)

    class Fast(Hasty):
        def monotonic(self) -> float:
            return 1000 * super().monotonic()

    monkeypatch.setattr(blob_crew, "STILL_S", 200.0)
    caplog.set_level(logging.INFO, "pww.transport.blob_crew")
    crew = Helpers(3, spoil=lambda rank, errand: errand if rank == 1 else None)
    client = carrier(desk.url, crew, clock=Fast())
    client.put(path, info)
    arrived(desk, path, info.digest)
    assert "nothing of the other ranks' shares arrived for 200 s" in caplog.text
    assert "pieces of the other ranks' shares are still to come" in caplog.text
    assert crew.ended == 1


def test_a_rank_that_says_that_it_did_is_not_believed(desk: Desk, tmp_path: Path) -> None:
    class Liars(Helpers):
        def work(self, rank: int, errand: Errand) -> None:
            self.came.append(Report(rank, 0, 0, ""))

    path, info = made(tmp_path, 5, size_bytes=SIZE)
    client = carrier(desk.url, Liars(3))
    client.put(path, info)
    arrived(desk, path, info.digest)
    assert client.transfers().bytes_up == info.size_bytes
    assert client.transfers().retries == 0, "asked before the end, not refused at it"


def test_a_rank_that_sees_another_file_costs_its_share_once_more(
    desk: Desk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The digest of the whole is wrong, the sums tell whose; the first rank sends those itself."""
    path, info = made(tmp_path, 6, size_bytes=SIZE)
    stale = tmp_path / "stale"
    stale.write_bytes(bytes(SIZE))
    crew = Helpers(
        3, spoil=lambda rank, errand: replace(errand, path=str(stale)) if rank == 3 else errand
    )
    client = carrier(desk.url, crew)
    client.put(path, info)
    arrived(desk, path, info.digest)
    assert "pieces came damaged" in caplog.text
    assert info.size_bytes < client.transfers().bytes_up < 2 * info.size_bytes
    assert (crew.times, client.transfers().retries) == (1, 1)


def test_a_stop_ends_the_others_too(desk: Desk, tmp_path: Path) -> None:
    path, info = made(tmp_path, 7, size_bytes=SIZE)
    stop = threading.Event()

    def late(request: Request, forward: Forward) -> Reply:
        stop.set()
        return forward(request)

    crew = Helpers(3)
    with (
        BadHttp(desk.server.port, late) as proxy,
        pytest.raises(Stopped, match="stopped in the middle of a transfer"),
    ):
        carrier(proxy.url, crew, stop=stop).put(path, info)
    assert crew.ended == 1
    carrier(desk.url, Helpers(3)).put(path, info)
    arrived(desk, path, info.digest)


def test_a_share_goes_under_the_session_and_the_authority_of_the_first(tmp_path: Path) -> None:
    """Over TLS, to a store that lets nobody else in; a session that is over is a fault to tell."""
    house = Gatehouse.build(tmp_path, SystemClock())
    door, bundle = house.door(), house.bundle("lumi/a")
    desk = Desk.open(tmp_path / "store", door=door, tls=credentials.server_tls(house.folder))
    url = f"https://127.0.0.1:{desk.server.port}"
    header = f"Bearer {door.open(bundle.key.open('lumi/a', '1' * 32)).token}"
    path, info = made(tmp_path, 8, size_bytes=SIZE)

    def over(rank: int, errand: Errand) -> Errand:
        return replace(errand, authorization="Bearer none") if rank == 1 else errand

    try:
        crew = Helpers(2, spoil=over)
        carrier(url, crew, tls=bundle.tls, authorize=lambda refused: header).put(path, info)
        arrived(desk, path, info.digest)
        faults = {report.rank: report.fault for report in crew.came}
        assert faults[2] == ""
        assert "session" in faults[1]
    finally:
        desk.close()
