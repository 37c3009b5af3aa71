"""Every fault of a network between a site and the blob store, and what becomes of the bytes.

Each ends in the exact bytes when it passes, or in a clear failure when it stays; and never is a
longer, shorter or wrong file visible at either end.
"""

import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))

from bad_http import BadHttp, BadPipe, Fault, Forward, HangUp, Reply, Request
from blob_desk import PIECE, QUICK, Desk, Hasty, carrier, made, moves
from net_faults import (
    Nth,
    cut_off,
    early_close,
    flip,
    flipped_down,
    flipped_unsaid,
    flipped_up,
    gzipped,
    longer_up,
    lost_reply,
    portal,
    redirect,
    replaced,
    rounded_down,
    shifted,
    truncated_up,
    unavailable,
    whole,
)

from pww.errors import CentralError, PayloadError, PwwError, Stopped, Unreachable
from pww.wire import PayloadInfo

IMPATIENT = replace(QUICK, deadline_s=0.3)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    opened = Desk.open(tmp_path_factory.mktemp("store"))
    yield opened
    opened.close()


GET, PUT = r"GET /v1/blobs/\w+", r"PUT /v1/blobs/"


# --------------------------------------------------------------------------------------- downloads


def published(desk: Desk, folder: Path, seed: int) -> tuple[Path, PayloadInfo]:
    path, info = made(folder, seed)
    desk.store.publish(info, path)
    return path, info


def nothing_but(folder: Path, *names: str) -> None:
    """What a download left: nothing under the name that was asked for."""
    assert {path.name for path in folder.iterdir()} == set(names)


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (early_close, "Content-Length none"),
        (cut_off, "ended at"),
        (rounded_down, "Content-Range 'bytes"),
        (shifted, "Content-Range 'bytes"),
        (whole, "the whole object"),
        (replaced, "another object"),
        (gzipped, "Content-Encoding gzip"),
        (lost_reply, "closed connection without response"),
        (unavailable, "HTTP 503"),
    ],
)
def test_fault_of_a_download(desk: Desk, tmp_path: Path, fault: Fault, text: str) -> None:
    source, info = published(desk, tmp_path, 1)
    to = tmp_path / "to"
    to.mkdir()
    once = Nth(GET, fault)
    with BadHttp(desk.server.port, once) as proxy:
        passing = carrier(proxy.url, clock=Hasty())
        passing.get(info, to / "file")
        assert (to / "file").read_bytes() == source.read_bytes()
        assert once.hit == 1
        assert passing.transfers().retries == 1, "the fault cost one repeat"
        assert passing.transfers().bytes_down == info.size_bytes
    nothing_but(to, "file")

    (to / "file").unlink()
    with BadHttp(desk.server.port, Nth(GET, fault, ever=True)) as proxy:
        staying = carrier(proxy.url, tuning=IMPATIENT, clock=Hasty())
        with pytest.raises(Unreachable, match=f"no usable answer to piece.*{re.escape(text)}"):
            staying.get(info, to / "file")
    nothing_but(to, "file.part", "file.done")
    carrier(desk.url).get(info, to / "file")  # what came meanwhile is no hindrance
    assert (to / "file").read_bytes() == source.read_bytes()


def test_flipped_bit_of_a_download(desk: Desk, tmp_path: Path, caplog) -> None:
    """The piece's sum shows it: that piece travels once more, and in the end it is given up."""
    source, info = published(desk, tmp_path, 2)
    pieces = -(-info.size_bytes // PIECE)
    with BadHttp(desk.server.port, Nth(GET, flipped_down)) as proxy:
        client = carrier(proxy.url)
        client.get(info, tmp_path / "file")
        ranges = [request.headers["range"] for request in proxy.requests]
    assert (len(ranges), len(set(ranges))) == (pieces + 1, pieces)
    assert client.transfers().retries == 1
    assert (tmp_path / "file").read_bytes() == source.read_bytes()
    assert "damaged on the way" in caplog.text
    assert "downloaded anew" not in caplog.text

    (tmp_path / "file").unlink()
    ever = Nth(GET, flipped_down, ever=True)
    with (
        BadHttp(desk.server.port, ever) as proxy,
        pytest.raises(PayloadError, match=r"CRC-32C .{8}, not .{8}; so it was 5 times: the object"),
    ):
        carrier(proxy.url).get(info, tmp_path / "file")
    nothing_but(tmp_path, source.name, "file.part", "file.done")
    carrier(desk.url).get(info, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == source.read_bytes()


def test_flipped_bit_of_a_download_without_sums(desk: Desk, tmp_path: Path, caplog) -> None:
    """Only the digest of the whole can show it: all travels once more, and then it is given up."""
    source, info = published(desk, tmp_path, 2)
    with BadHttp(desk.server.port, Nth(GET, flipped_unsaid)) as proxy:
        client = carrier(proxy.url)
        client.get(info, tmp_path / "file")
        assert client.transfers().bytes_down == 2 * info.size_bytes
        assert client.transfers().retries == 1, "the second download"
    assert (tmp_path / "file").read_bytes() == source.read_bytes()
    assert "downloaded anew" in caplog.text

    (tmp_path / "file").unlink()
    ever = Nth(GET, flipped_unsaid, ever=True)
    with (
        BadHttp(desk.server.port, ever) as proxy,
        pytest.raises(PayloadError, match=f"BLAKE3 {info.digest} were announced.*so it was twice"),
    ):
        carrier(proxy.url).get(info, tmp_path / "file")
    nothing_but(tmp_path, source.name)


@pytest.mark.parametrize(
    ("fault", "text"), [(redirect, "HTTP 302 to 'http://portal"), (portal, "whole object")]
)
def test_what_is_no_blob_store(desk: Desk, tmp_path: Path, fault: Fault, text: str) -> None:
    """A redirect is not followed; another server's page is not taken for an object."""
    _, info = published(desk, tmp_path, 3)
    with BadHttp(desk.server.port, Nth(GET, fault, ever=True)) as proxy:
        client = carrier(proxy.url, tuning=IMPATIENT)
        with pytest.raises(CentralError, match=re.escape(text)):
            client.get(info, tmp_path / "file")
        assert all("portal" not in request.target for request in proxy.requests)
    assert not (tmp_path / "file").exists()


def test_redirect_of_an_upload(desk: Desk, tmp_path: Path) -> None:
    path, info = made(tmp_path, 4)
    for wanted, n in ((r"POST /v1/blobs/\w+/\d+$", 1), (PUT, 2), (r"POST .*/commit", 1)):
        with BadHttp(desk.server.port, Nth(wanted, redirect, n=n)) as proxy:
            with pytest.raises(CentralError, match=r"HTTP 302 to .*which is not followed"):
                carrier(proxy.url).put(path, info)
            assert all("portal" not in request.target for request in proxy.requests)
        assert desk.store.path(info.digest) is None
    with (
        BadHttp(desk.server.port, Nth(r"POST /v1/blobs/\w+/\d+$", portal, n=1)) as proxy,
        pytest.raises(CentralError, match="an unreadable state"),
    ):
        carrier(proxy.url).put(path, info)


def test_retry_after_is_honoured(desk: Desk, tmp_path: Path) -> None:
    _, info = published(desk, tmp_path, 5)
    clock = Hasty()
    with BadHttp(desk.server.port, Nth(GET, unavailable)) as proxy:
        carrier(proxy.url, clock=clock).get(info, tmp_path / "file")
    assert 7.0 in clock.waits, "not sooner than the server asked"


@pytest.mark.parametrize("wanted", [GET, PUT])
def test_stall(desk: Desk, tmp_path: Path, wanted: str) -> None:
    """A connection on which nothing comes for longer than the timeout is given up."""
    path, info = made(tmp_path, 6 if wanted == GET else 7)
    over = threading.Event()

    def stall(request: Request, forward: Forward) -> Reply:
        over.wait(30.0)
        raise HangUp

    with BadHttp(desk.server.port, Nth(wanted, stall)) as proxy:
        client = carrier(proxy.url, tuning=replace(QUICK, timeout_s=0.3))
        moves(client, desk, path, info, up=wanted == PUT)
        assert client.transfers().retries == 1
        over.set()


@pytest.mark.parametrize("wanted", [GET, PUT])
def test_last_piece_is_not_waited_for_for_long(desk: Desk, tmp_path: Path, wanted: str) -> None:
    """A connection that rests while all others are done is replaced, long before the timeout."""
    path, info = made(tmp_path, 16 if wanted == GET else 17)
    over, outlasted = threading.Event(), []

    def rest(request: Request, forward: Forward) -> Reply:
        outlasted.append(not over.wait(20.0))
        raise HangUp

    with BadHttp(desk.server.port, Nth(wanted, rest)) as proxy:
        client = carrier(proxy.url, tuning=replace(QUICK, timeout_s=60.0))
        moves(client, desk, path, info, up=wanted == PUT)
        assert client.transfers().retries == 1
        over.set()
    assert outlasted in ([], [False]), "the transfer ended before the rest did"


# ----------------------------------------------------------------------------------------- uploads


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (truncated_up, "piece . came with 65436 bytes, not 65536"),
        (longer_up, "a piece has 65536 at most|more than its"),
        (lost_reply, "closed connection without response"),
        (unavailable, "HTTP 503"),
    ],
)
def test_fault_of_an_upload(desk: Desk, tmp_path: Path, fault: Fault, text: str) -> None:
    final = fault is longer_up  # refused: this client sends no such thing
    path, info = made(tmp_path, 100 + len(text))
    ever = Nth(PUT, fault, ever=True)
    with BadHttp(desk.server.port, ever) as proxy:
        staying = carrier(proxy.url, tuning=IMPATIENT, clock=Hasty())
        if fault is lost_reply:  # the pieces arrive, though nobody hears of it
            with pytest.raises(Unreachable, match=text):
                staying.put(path, info)
        else:
            with pytest.raises(PwwError, match=text) as caught:
                staying.put(path, info)
            assert final or isinstance(caught.value, Unreachable)
    assert desk.store.path(info.digest) is None, "nothing that is not whole is visible"

    once = Nth(PUT, fault, n=1)
    with BadHttp(desk.server.port, once) as proxy:
        passing = carrier(proxy.url, clock=Hasty())
        if final:
            with pytest.raises(PwwError, match=text):
                passing.put(path, info)
            passing.put(path, info)
        else:
            passing.put(path, info)
            assert passing.transfers().retries == once.hit == 1
    there = desk.store.path(info.digest)
    assert there is not None
    assert there.read_bytes() == path.read_bytes()


def test_flipped_bit_of_an_upload(desk: Desk, tmp_path: Path, caplog) -> None:
    """The whole shows it, the sums say where: that piece travels once more, or it is given up."""
    path, info = made(tmp_path, 105)
    pieces = -(-info.size_bytes // PIECE)
    with BadHttp(desk.server.port, Nth(PUT, flipped_up)) as proxy:
        client = carrier(proxy.url)
        client.put(path, info)
        sent = [r.target for r in proxy.requests if r.method == "PUT"]
    assert (len(sent), len(set(sent))) == (pieces + 1, pieces)
    assert client.transfers().retries == 1
    there = desk.store.path(info.digest)
    assert there is not None
    assert there.read_bytes() == path.read_bytes()
    assert f"1 of {pieces} pieces came damaged" in caplog.text
    assert f"BLAKE3 {info.digest} were announced" in caplog.text

    desk.store.discard(info.digest)
    before = desk.store.used_bytes
    ever = Nth(PUT, flipped_up, ever=True)
    with (
        BadHttp(desk.server.port, ever) as proxy,
        pytest.raises(PayloadError, match=r"so it was 5 times: something on the way changes what"),
    ):
        carrier(proxy.url).put(path, info)
    assert desk.store.path(info.digest) is None, "nothing that is not right is visible"
    assert desk.store.used_bytes == before, "it was given up there too"
    carrier(desk.url).put(path, info)
    assert desk.store.path(info.digest) is not None
    desk.store.discard(info.digest)


def test_checks_that_find_nothing_condemn_no_file(desk: Desk, tmp_path: Path) -> None:
    """Somebody on the way says "right" of every piece: the file here is, and it is asked again."""
    path, info = made(tmp_path, 107)
    pieces = -(-info.size_bytes // PIECE)
    damage, asked = Nth(PUT, flipped_up), Nth(r"POST .*/[0-9a-f]{8}$", portal, n=0, ever=True)

    def forged(request: Request, forward: Forward) -> Reply:
        return Reply(204, {}, b"") if asked.seen <= pieces else forward(request)

    asked.fault = forged
    with BadHttp(desk.server.port, lambda r, f: damage(r, lambda s: asked(s, f))) as proxy:
        client = carrier(proxy.url)
        client.put(path, info)
    assert (damage.hit, asked.seen, client.transfers().retries) == (1, 2 * pieces, 2)
    there = desk.store.path(info.digest)
    assert there is not None
    assert there.read_bytes() == path.read_bytes()


def test_store_that_loses_a_damaged_upload(desk: Desk, tmp_path: Path) -> None:
    """Between the damage and the question where: all of it travels anew, and comes whole."""
    path, info = made(tmp_path, 106)
    damage = Nth(PUT, flipped_up)

    def lost(request: Request, forward: Forward) -> Reply:
        desk.store.collect([], older_than_s=0.0)
        return forward(request)

    loss = Nth(r"POST .*/[0-9a-f]{8}$", lost, n=1)
    with BadHttp(desk.server.port, lambda r, f: damage(r, lambda s: loss(s, f))) as proxy:
        carrier(proxy.url).put(path, info)
    assert (damage.hit, loss.hit) == (1, 1)
    there = desk.store.path(info.digest)
    assert there is not None
    assert there.read_bytes() == path.read_bytes()


def test_lost_reply_to_begin_and_commit(desk: Desk, tmp_path: Path) -> None:
    for seed, wanted in ((110, r"POST .*/[0-9]+$"), (111, r"POST .*/commit")):
        path, info = made(tmp_path, seed)
        with BadHttp(desk.server.port, Nth(wanted, lost_reply, n=1)) as proxy:
            carrier(proxy.url).put(path, info)
        there = desk.store.path(info.digest)
        assert there is not None
        assert there.read_bytes() == path.read_bytes()


def test_wrong_from_the_start(desk: Desk, tmp_path: Path) -> None:
    """A file that is not what its digest says: found at the other end, and never kept there."""
    path, info = made(tmp_path, 120)
    damaged = path.with_name("damaged")
    damaged.write_bytes(flip(path.read_bytes()))
    client = carrier(desk.url)
    with pytest.raises(PayloadError, match="those of the file here, which is not what it is annou"):
        client.put(damaged, info)
    assert client.transfers().retries == 0, "nothing is sent twice for it"
    assert desk.store.path(info.digest) is None
    assert desk.store.begin(info.digest, info.size_bytes, replica="").missing[0][0] == 0, (
        "forgotten"
    )
    damaged.write_bytes(b"short")
    with pytest.raises(PayloadError, match=r"5 bytes, announced were 1048699: write it again"):
        carrier(desk.url).put(damaged, info)
    carrier(desk.url).put(path, info)
    assert desk.store.path(info.digest) is not None


def no_such_method(request: Request, forward: Forward) -> Reply:
    page = b"<html>Method Not Allowed</html>"
    return Reply(405, {"content-type": "text/html", "content-length": str(len(page))}, page)


@pytest.mark.parametrize("fault", [no_such_method, unavailable, lost_reply])
def test_wrong_file_that_cannot_be_given_up(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault, caplog
) -> None:
    """That the file is wrong is told all the same; what stays there is in nobody's way."""
    monkeypatch.setattr("pww.transport.blob_upload.GIVE_UP_S", 0.2)
    path, info = made(tmp_path, 121)
    damaged = path.with_name("damaged")
    damaged.write_bytes(flip(path.read_bytes()))
    with (
        BadHttp(desk.server.port, Nth("DELETE ", fault, n=1, ever=True)) as proxy,
        pytest.raises(PayloadError, match="those of the file here, which is not what it is annou"),
    ):
        carrier(proxy.url, clock=Hasty()).put(damaged, info)
    assert f"{info.digest[:12]}… stays at the central for now: " in caplog.text
    carrier(desk.url).put(path, info)
    there = desk.store.path(info.digest)
    assert there is not None
    assert there.read_bytes() == path.read_bytes()
    desk.store.discard(info.digest)


def test_an_upload_that_the_store_lost_begins_again(desk: Desk, tmp_path: Path) -> None:
    """Once is a repeat that is counted; again and again is said."""
    path, info = made(tmp_path, 121)

    def lost(request: Request, forward: Forward) -> Reply:
        desk.store.collect([], older_than_s=0.0)
        return forward(request)

    with BadHttp(desk.server.port, Nth(PUT, lost, ever=True)) as proxy:
        client = carrier(proxy.url, tuning=replace(QUICK, min_streams=1, max_streams=1))
        with pytest.raises(CentralError, match=r"lost the upload of \w{12}… 8 times: see its log"):
            client.put(path, info)
        assert client.transfers().retries == 7
        proxy.fault = Nth(PUT, lost)
        client.put(path, info)
        assert client.transfers().retries == 7 + 1


# ---------------------------------------------------------------------------------- broken in two


@pytest.mark.parametrize("up", [True, False], ids=["up", "down"])
def test_reset_at_every_boundary(desk: Desk, tmp_path: Path, up: bool) -> None:
    """A reset after each multiple of 64 KiB: only what was under way travels again."""
    one = replace(QUICK, min_streams=1, max_streams=1)
    path, info = made(tmp_path, 130 + up)
    for after in range(0, info.size_bytes, 64 << 10):
        if up:
            desk.store.discard(info.digest)
        else:
            desk.store.publish(info, path)
        with BadPipe(desk.server.port, up=up, after_bytes=after) as pipe:
            client = carrier(pipe.url, tuning=one)
            if up:
                client.put(path, info)
                there = desk.store.path(info.digest)
                assert there is not None
            else:
                client.get(info, there := tmp_path / f"file-{after}")
            assert there.read_bytes() == path.read_bytes()
            assert pipe.reset
            moved = client.transfers()
            assert moved.retries == 1
            assert moved.bytes_up + moved.bytes_down == info.size_bytes, "each piece once"


def test_stop_in_the_middle(desk: Desk, tmp_path: Path) -> None:
    """Whoever stops waits for no timeout, and goes on where it was."""
    path, info = published(desk, tmp_path, 140)
    stop, over = threading.Event(), threading.Event()

    def stopping(request: Request, forward: Forward) -> Reply:
        stop.set()
        over.wait(30.0)
        raise HangUp

    with BadHttp(desk.server.port, Nth(GET, stopping, n=8, ever=True)) as proxy:
        with pytest.raises(Stopped, match="it goes on where it was"):
            carrier(proxy.url, stop=stop).get(info, tmp_path / "file")
        over.set()
    assert not (tmp_path / "file").exists()
    client = carrier(desk.url)
    client.get(info, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == path.read_bytes()
    assert client.transfers().bytes_down <= info.size_bytes - 5 * PIECE, "most was there"
