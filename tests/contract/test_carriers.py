"""What every carrier keeps: exact bytes or a clear failure, nothing half visible, idempotence.

One suite for the blob store (its real port), a shared folder, fsspec's memory and an S3 server.
"""

import gc
import logging
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from blake3 import blake3

sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))

from blob_desk import PIECE, QUICK, Desk, carrier, made
from s3_server import options, s3_server

from pww.clock import SystemClock
from pww.errors import CentralError, PayloadError, Refused, StateError, Stopped
from pww.transport import fsspec_upload
from pww.transport.carrier import Carrier, Transfers
from pww.transport.fsspec_carrier import FsspecCarrier
from pww.wire import PayloadInfo

TUNING = replace(QUICK, deadline_s=5.0)
KINDS = ("blob", "file", "memory", "s3")


@dataclass
class Place:
    """A place that carriers go to, and a look at what is there without one."""

    client: Callable[..., Carrier]
    damage: Callable[[str, bytes], None]


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("s3")
    (folder / "bucket").mkdir()
    with s3_server(folder) as url:
        yield url


def fsspec_place(url: str, **more: Any) -> Place:
    def client(**words: Any) -> FsspecCarrier:
        words = {"stop": threading.Event(), "tuning": TUNING, **words}
        return FsspecCarrier(
            url, clock=SystemClock(), random=np.random.default_rng(0), options=more, **words
        )

    def damage(digest: str, data: bytes) -> None:
        fs, root = fsspec.core.url_to_fs(url, **more)
        fs.pipe_file(f"{root}/{digest}", data)

    return Place(client, damage)


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    match request.param:
        case "blob":
            desk = Desk.open(tmp_path / "store")
            yield Place(
                lambda **words: carrier(desk.url, **{"tuning": TUNING, **words}),
                lambda digest, data: (desk.store._objects / digest).write_bytes(data) and None,
            )
            desk.close()
        case "file":
            yield fsspec_place(f"file://{tmp_path}/shared/run")
        case "memory":
            yield fsspec_place(f"memory://{tmp_path.name}/run")
        case _:
            url = request.getfixturevalue("s3")
            yield fsspec_place(f"s3://bucket/{tmp_path.name}", **options(url))


@pytest.mark.parametrize("size", [0, 1, PIECE, (1 << 20) + 123])
def test_there_and_back(place: Place, tmp_path: Path, size: int) -> None:
    path, info = made(tmp_path, size, size_bytes=size)
    client = place.client()
    client.put(path, info)
    client.get(info, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == path.read_bytes()
    moved = client.transfers()
    assert (moved.num_up, moved.num_down) == (1, 1)
    assert (moved.bytes_up, moved.bytes_down) == (size, size)
    assert moved.seconds_up > 0.0
    assert moved.seconds_down > 0.0
    assert moved.retries == 0
    client.put(path, info)
    assert client.transfers().bytes_up == size, "what is there does not travel again"
    client.close()
    other = place.client()
    assert other.transfers() == Transfers()
    other.get(info, tmp_path / "back")  # over what is there
    assert (tmp_path / "back").read_bytes() == path.read_bytes()


def test_bigger_than_a_part(place: Place, tmp_path: Path) -> None:
    """Twenty megabytes: S3 takes them in several parts."""
    path, info = made(tmp_path, 1, size_bytes=20 << 20)
    client = place.client(tuning=replace(TUNING, piece_bytes=4 << 20))
    client.put(path, info)
    client.get(info, tmp_path / "back")
    with (tmp_path / "back").open("rb") as file:
        assert blake3(file.read()).hexdigest() == info.digest


def test_not_there(place: Place, tmp_path: Path) -> None:
    info = PayloadInfo(codec="fp32", size_bytes=5, digest="0" * 64)
    with pytest.raises(
        CentralError, match=r"object 0{16}….*never\s+complete.* or was removed"
    ) as why:
        place.client().get(info, tmp_path / "file")
    assert not isinstance(why.value, Refused), "theta moves on: a site asks for the next one"
    assert not (tmp_path / "file").exists()


def test_not_what_it_is_announced_as(place: Place, tmp_path: Path) -> None:
    """At the sender: a wrong file gets nowhere."""
    path, info = made(tmp_path, 2)
    data = path.read_bytes()
    client = place.client()
    path.write_bytes(data[:-1])
    with pytest.raises(PayloadError, match="has 1048698 bytes, announced were 1048699: write it"):
        client.put(path, info)
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(PayloadError, match=f"BLAKE3.*{info.digest}.*write it again"):
        client.put(path, info)
    with pytest.raises(CentralError):
        client.get(info, tmp_path / "back")
    path.write_bytes(data)
    client.put(path, info)
    client.get(info, tmp_path / "back")


def test_damaged_there(place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A bit that flipped at rest: said, tried again, given up; nothing is visible."""
    path, info = made(tmp_path, 3)
    data = path.read_bytes()
    client = place.client()
    client.put(path, info)
    place.damage(info.digest, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(PayloadError, match="so it was twice: the object is damaged at"):
        client.get(info, tmp_path / "back")
    assert "downloaded anew" in caplog.text
    assert client.transfers().retries == 1, "the second download"
    assert not (tmp_path / "back").exists()
    place.damage(info.digest, data)
    client.get(info, tmp_path / "back")


def test_stop(place: Place, tmp_path: Path) -> None:
    path, info = made(tmp_path, 4)
    place.client().put(path, info)
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped, match="stopped in the middle of a transfer"):
        place.client(stop=stop).get(info, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_download_goes_on(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a fault of this side in the middle, only the rest travels."""
    from pww.transport.piece_file import PieceFile

    path, info = made(tmp_path, 5)
    place.client().put(path, info)
    real, seen = PieceFile.finish, []

    def failing(self: PieceFile, number: int) -> None:
        seen.append(number)
        if len(seen) == 9:
            raise OSError("the disk went away")
        real(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(PieceFile, "finish", failing)
        with pytest.raises(OSError, match="the disk went away"):
            place.client().get(info, tmp_path / "back")
    client = place.client()
    client.get(info, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == path.read_bytes()
    assert client.transfers().bytes_down <= info.size_bytes - 8 * PIECE


def test_two_at_once(place: Place, tmp_path: Path) -> None:
    """The same object from two senders, and two objects from one client."""
    first, info = made(tmp_path, 6)
    second, other = made(tmp_path, 7)
    shared = place.client()
    faults: list[BaseException] = []

    def run(call: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                call()
            except BaseException as fault:
                faults.append(fault)

        thread = threading.Thread(target=guarded)
        thread.start()
        return thread

    threads = [
        run(lambda: place.client().put(first, info)),
        run(lambda: shared.put(first, info)),
        run(lambda: shared.put(second, other)),
    ]
    for thread in threads:
        thread.join()
    assert not faults
    for path, wanted in ((first, info), (second, other)):
        shared.get(wanted, tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == path.read_bytes()


# ------------------------------------------------------------------------------- of fsspec's alone


def client(url: str, *, deadline_s: float = 0.05, **more: Any) -> FsspecCarrier:
    return FsspecCarrier(
        url, clock=SystemClock(), stop=more.pop("stop", threading.Event()),
        random=np.random.default_rng(0), tuning=replace(TUNING, deadline_s=deadline_s),
        options=more,
    )  # fmt: skip


def test_unknown_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CentralError, match="nosuch://x is no URL that fsspec can open"):
        client("nosuch://name:secret@x")
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    with pytest.raises(StateError, match=r"s3://bucket/run needs a package .*pww\[s3\]"):
        client("s3://bucket/run")


def test_shared_folder_shows_nothing_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name appears when the bytes are durable; a failed or stopped upload leaves nothing."""
    path, info = made(tmp_path, 8)
    shared = tmp_path / "shared"
    # a try that writes all of it got on: with a deadline it may take any number of tries
    there = client(f"file://{shared}", deadline_s=0.0)
    seen: list[list[str]] = []
    real = there._fs.mv

    def moving(source: str, target: str) -> None:
        seen.append(sorted(p.name for p in shared.iterdir()))
        real(source, target)

    monkeypatch.setattr(there._fs, "mv", moving)
    there.put(path, info)
    assert len(seen) == 1
    assert seen[0][0].endswith(".part")
    assert [p.name for p in shared.iterdir()] == [info.digest]

    def full(source: str, target: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(there._fs, "mv", full)
    there.remove(info.digest)
    there.remove(info.digest)
    with pytest.raises(CentralError, match=r"no usable answer to an upload.*No space left"):
        there.put(path, info)
    assert not list(shared.iterdir())


def test_forbidden_and_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, s3: str) -> None:
    path, info = made(tmp_path, 9)
    with pytest.raises(CentralError, match="s3://bucket/run does not let this process in"):
        client("s3://bucket/run", **{**options(s3), "secret": "wrong"}).put(path, info)
    with pytest.raises(CentralError, match=r"nosuchbucket.*make the bucket or folder"):
        client("s3://nosuchbucket/run", **options(s3)).put(path, info)


def test_unreachable_is_retried_and_says_no_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, info = made(tmp_path, 10)
    words = options("http://127.0.0.1:9")
    away = client("s3://bucket/run", **words, config_kwargs={"retries": {"max_attempts": 1}})
    away._fs.retries = 1
    with caplog.at_level(logging.DEBUG), pytest.raises(CentralError, match="s3://bucket/run gave"):
        away.put(path, info)
    told = [r.getMessage() for r in caplog.records if r.name.startswith("pww")]
    assert told
    assert not any(str(words["secret"]) in line for line in told)


@contextmanager
def cut(url: str, *, times: int) -> Iterator[tuple[str, list[int]]]:
    """A way to an S3 server that ends the first `times` connections once something was asked."""
    host, port = url.removeprefix("http://").split(":")
    lost: list[int] = []
    over = threading.Event()

    def pump(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def relay(here: socket.socket) -> None:
        with here, socket.create_connection((host, int(port))) as there:
            back = threading.Thread(target=pump, args=(there, here))
            back.start()
            pump(here, there)
            back.join()

    def serve(listener: socket.socket) -> None:
        while not over.is_set():
            try:
                here, _ = listener.accept()
            except OSError:
                return
            if len(lost) < times:
                lost.append(len(here.recv(200)))
                here.close()
                continue
            threading.Thread(target=relay, args=(here,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", lost
        over.set()
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("times", [0, 2])
def test_what_botocore_repeats_by_itself_is_counted(tmp_path: Path, s3: str, times: int) -> None:
    path, info = made(tmp_path, 17)
    with cut(s3, times=times) as (url, lost):
        there = client(f"s3://bucket/{tmp_path.name}-{times}", **options(url))
        there.put(path, info)
        # aiohttp opens a connection that broke once more before botocore hears of it
        assert (len(lost), there.transfers().retries) == (times, times // 2)
        assert there.transfers().bytes_up == info.size_bytes
        assert there._fs.retries == 1, "s3fs repeats nothing in silence"


def test_a_client_of_a_bucket_goes_with_its_connections(tmp_path: Path, s3: str) -> None:
    """Or a process would keep those of every carrier it ever had."""
    path, info = made(tmp_path, 18)
    there = client(f"s3://bucket/{tmp_path.name}", **options(s3))
    there.put(path, info)
    left = weakref.ref(there._fs)
    del there
    gc.collect()
    assert left() is None


def test_short_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, info = made(tmp_path, 11)
    there = client(f"file://{tmp_path}/shared")
    there.put(path, info)
    monkeypatch.setattr(there._fs, "cat_file", lambda name, start, end: b"x")
    with pytest.raises(CentralError, match="1 bytes came of 65536"):
        there.get(info, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_lost_on_the_way_to_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, info = made(tmp_path, 12)
    there = client(f"memory://{tmp_path.name}/lost")
    real = there._fs.pipe_file
    monkeypatch.setattr(there._fs, "put_file", lambda a, b, callback: real(b, b"x"))
    with pytest.raises(CentralError, match="1 bytes are there after an upload of 1048699"):
        there.put(path, info)


def test_stopped_upload(tmp_path: Path) -> None:
    path, info = made(tmp_path, 13)
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped, match="in the middle of an upload; it begins anew"):
        client(f"file://{tmp_path}/shared", stop=stop).put(path, info)
    assert not (tmp_path / "shared").exists()


class Beats(SystemClock):
    """A clock that tests move on; pauses take none of its time."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.is_set()


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_a_long_upload_that_gets_on_outlives_its_deadline(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Broken off after hours: the deadline is of what does not move, and progress is told."""
    caplog.set_level(logging.INFO)
    path, info = made(tmp_path, 14, size_bytes=10 << 20)
    clock, tries = Beats(), []
    url = f"{kind}://{tmp_path}/long" if kind == "file" else f"memory://{tmp_path.name}/long"
    there = FsspecCarrier(
        url, clock=clock, stop=threading.Event(), random=np.random.default_rng(0), tuning=TUNING
    )
    real_mv, real_moved = there._fs.mv, fsspec_upload.Upload.moved

    def slow(upload: fsspec_upload.Upload, num_bytes: int, *, streams: int) -> None:
        clock.now_s += 3600.0
        real_moved(upload, num_bytes, streams=streams)

    def mv(source: str, target: str) -> None:
        tries.append(source)
        if len(tries) < 3:
            raise OSError("broken pipe")
        real_mv(source, target)

    def never(source: str, target: str) -> None:
        tries.append(source)
        raise OSError("no such permission")

    monkeypatch.setattr(fsspec_upload.Upload, "moved", slow)
    monkeypatch.setattr(there._fs, "mv", mv)
    there.put(path, info)
    assert len(tries) == 3
    moved = there.transfers()
    assert (moved.retries, moved.bytes_up) == (2, info.size_bytes)
    assert "MB/s over 1 streams" in caplog.text
    assert "s left" in caplog.text

    monkeypatch.setattr(there._fs, "mv", never)
    there.remove(info.digest)
    tries.clear()
    with pytest.raises(CentralError, match="gave no usable answer to an upload within 5 s"):
        there.put(path, info)
    assert len(tries) == fsspec_upload.ENOUGH + 1, "what fails is not the way there"

    def stalls(source: str, target: str) -> None:
        clock.now_s += TUNING.deadline_s
        raise OSError("nobody there")

    monkeypatch.setattr(there._fs, "mv", stalls)
    there.remove(info.digest)
    with pytest.raises(CentralError, match="gave no usable answer to an upload within 5 s"):
        there.put(path, info)


def test_what_is_there_is_listed_by_our_names_only(place: Place, tmp_path: Path) -> None:
    path, info = made(tmp_path, 15)
    client = place.client()
    if not isinstance(client, FsspecCarrier):
        return
    assert client.contents() == {}, "a folder that nobody made yet"
    client.put(path, info)
    place.damage("notes.txt", b"of somebody")
    place.damage(f"{'a' * 64}.0123abcd.part", b"half")
    there = client.contents()
    assert set(there) == {info.digest, f"{'a' * 64}.0123abcd.part"}
    assert client.contents() == there, "nothing happened"
    place.damage(f"{'a' * 64}.0123abcd.part", b"more than half")
    assert client.contents()[f"{'a' * 64}.0123abcd.part"] != there[f"{'a' * 64}.0123abcd.part"]
    client.remove(f"{'a' * 64}.0123abcd.part")
    assert set(client.contents()) == {info.digest}
