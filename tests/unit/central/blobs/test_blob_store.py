"""The blob store on disk: what is complete, what is on its way, who has room, what is collected."""

import os
from pathlib import Path

import google_crc32c
import pytest
from blob_desk import info_of

from pww.central.blob_upload import BlobFault
from pww.central.blobs import BlobStore
from pww.clock import ManualClock
from pww.errors import StateError

PIECE = 1000
A, B, C = (bytes([byte]) * (3 * PIECE + 1) for byte in b"abc")


class House:
    """A store that can be opened again."""

    def __init__(self, folder: Path, **more: int) -> None:
        self.folder, self.clock, self.more = folder, ManualClock(), more
        self.open()

    def open(self) -> None:
        limits = {"quota_bytes": 1 << 20, "replica_bytes": 1 << 20, **self.more}
        self.store = BlobStore(self.folder, clock=self.clock, piece_bytes=PIECE, **limits)

    def restart(self, *, kill: bool = False) -> None:
        if not kill:
            self.store.close()
        self.open()

    def send(self, data: bytes, *numbers: int, replica: str = "lumi/a") -> None:
        """Pieces of `data`; all that are missing where none is named."""
        info = info_of(data)
        state = self.store.begin(info.digest, len(data), replica=replica)
        upload = self.store.upload(info.digest, len(data), replica=replica)
        missing = [n for start, stop in state.missing for n in range(start, stop)]
        for number in numbers or missing:
            piece = data[number * PIECE :][:PIECE]
            writer = upload.writer(number)
            if writer is not None:
                writer.write([piece[:100], piece[100:]])
                writer.finish()

    def commit(self, data: bytes, *, replica: str = "lumi/a") -> None:
        info = info_of(data)
        self.store.commit(info.digest, len(data), replica=replica)

    def files(self) -> int:
        return sum(path.is_file() for path in self.folder.rglob("*"))


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path / "store")


def fault(call, *args, status: int, text: str, **words) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(BlobFault, match=text) as caught:
        call(*args, **words)
    assert caught.value.status == status


def test_upload_becomes_an_object(house: House) -> None:
    info = info_of(A)
    assert house.store.begin(info.digest, len(A), replica="lumi/a").missing == [(0, 4)]
    house.send(A, 1, 3)
    assert house.store.begin(info.digest, len(A), replica="lumi/a").missing == [(0, 1), (2, 3)]
    fault(house.commit, A, status=409, text=r"2 pieces of \w{16}… are missing: begin again")
    assert house.store.path(info.digest) is None
    house.send(A)
    assert house.store.path(info.digest) is None, "not before the commit"
    house.commit(A)
    house.commit(A)  # its reply was lost
    assert house.store.path(info.digest).read_bytes() == A  # type: ignore[union-attr]
    assert house.store.begin(info.digest, len(A), replica="sara/a").complete
    assert house.files() == 1
    assert house.store.used_bytes == len(A)


def test_empty_object(house: House) -> None:
    house.send(b"")
    house.commit(b"")
    assert house.store.path(info_of(b"").digest).read_bytes() == b""  # type: ignore[union-attr]


@pytest.mark.parametrize("kill", [False, True])
def test_restart(house: House, kill: bool) -> None:
    """Objects and finished pieces stay; an upload goes on without a new beginning."""
    house.send(A)
    house.commit(A)
    house.send(B, 0, 2)
    house.restart(kill=kill)
    assert house.store.path(info_of(A).digest).read_bytes() == A  # type: ignore[union-attr]
    assert house.store.used_bytes == len(A) + len(B)
    upload = house.store.upload(info_of(B).digest, len(B), replica="lumi/a")
    assert upload.missing() == [1, 3]
    house.send(B)
    house.commit(B)
    assert house.store.path(info_of(B).digest).read_bytes() == B  # type: ignore[union-attr]


@pytest.mark.parametrize("restart", [False, True])
def test_wrong_whole(house: House, restart: bool) -> None:
    """Nothing is visible; the sums of its pieces tell which came to harm, and those come again."""
    info = info_of(A)
    house.store.begin(info.digest, len(A), replica="lumi/a")
    upload = house.store.upload(info.digest, len(A), replica="lumi/a")
    for number in range(4):
        piece = (B if number in (0, 2) else A)[number * PIECE :][:PIECE]
        writer = upload.writer(number)
        assert writer is not None
        writer.write([piece])
        writer.finish()
    for _ in range(2):  # a reply was lost
        fault(house.commit, A, status=422, text="those that came have .*: check its pieces")
    assert house.store.path(info.digest) is None
    if restart:
        house.restart()
        upload = house.store.upload(info.digest, len(A), replica="lumi/a")
    sums = [google_crc32c.value(A[n * PIECE :][:PIECE]) for n in range(4)]
    for number in (1, 3):
        upload.check(number, sums[number])
    for number in (0, 2, 0):  # once more: a reply was lost
        text = f"piece {number} has not CRC-32C {sums[number]:08x} here"
        fault(upload.check, number, sums[number], status=422, text=text)
    fault(upload.check, 4, 0, status=404, text="piece 4 of an object of 4 pieces: begin again")
    assert house.store.begin(info.digest, len(A), replica="lumi/a").missing == [(0, 1), (2, 3)]
    fault(house.commit, A, status=409, text=r"2 pieces of \w{16}… are missing: begin again")
    house.send(A)
    house.commit(A)
    assert house.store.path(info.digest).read_bytes() == A  # type: ignore[union-attr]
    fault(upload.check, 0, sums[0], status=409, text="this upload is over")


def test_over_in_the_middle_of_a_commit(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waited for it begins again; that is no fault of the disk. What was begun since stays."""
    info = info_of(A)
    house.send(A)
    upload = house.store.upload(info.digest, len(A), replica="lumi/a")
    sync = os.fsync

    def meanwhile(fd: int) -> None:
        sync(fd)
        monkeypatch.undo()
        house.store.forget(info.digest, len(A), replica="lumi/a")
        house.send(A, 2)

    monkeypatch.setattr(os, "fsync", meanwhile)
    fault(house.commit, A, status=409, text="this upload is over or was collected: begin again")
    assert house.store.begin(info.digest, len(A), replica="lumi/a").missing == [(0, 2), (3, 4)]
    fault(upload.check, 0, 0, status=409, text="this upload is over or was collected: begin again")
    house.send(A)
    house.commit(A)
    assert house.store.path(info.digest).read_bytes() == A  # type: ignore[union-attr]


def test_given_up(house: House) -> None:
    """Nothing of the upload is left, nor counted; nobody else's goes with it."""
    house.send(A, 0)
    house.send(A, 1, replica="sara/a")
    info = info_of(A)
    upload = house.store.upload(info.digest, len(A), replica="lumi/a")
    for _ in range(2):
        house.store.forget(info.digest, len(A), replica="lumi/a")
    assert house.store.used_bytes == len(A)
    assert house.store.begin(info.digest, len(A), replica="sara/a").missing == [(0, 1), (2, 4)]
    fault(upload.writer, 0, status=409, text="this upload is over or was collected: begin again")


def test_damaged_pieces(house: House) -> None:
    info = info_of(A)
    house.store.begin(info.digest, len(A), replica="lumi/a")
    upload = house.store.upload(info.digest, len(A), replica="lumi/a")
    fault(upload.writer, 4, status=404, text="piece 4 of an object of 4 pieces")
    writer = upload.writer(0)
    assert writer is not None
    fault(
        writer.write,
        [bytes(PIECE + 1)],
        status=422,
        text=f"piece 0 came with more than its {PIECE}",
    )
    writer.write([A[: PIECE - 1]])
    fault(writer.finish, status=422, text=f"{PIECE - 1} bytes, not {PIECE}: send it again")
    assert 0 in upload.missing()


def test_later_try_replaces_an_earlier(house: House) -> None:
    """A try that was given up can write nothing after a later one was begun."""
    info = info_of(A)
    house.store.begin(info.digest, len(A), replica="lumi/a")
    upload = house.store.upload(info.digest, len(A), replica="lumi/a")
    old, new = upload.writer(0), upload.writer(0)
    assert old is not None
    assert new is not None
    new.write([A[:PIECE]])
    fault(old.write, [b"spoilt"], status=409, text="piece 0 was begun again by a later request")
    old.drop()
    new.finish()
    fault(old.write, [b"spoilt"], status=409, text="begun again")
    assert upload.writer(0) is None, "it is there"
    house.send(A)
    house.commit(A)


def test_two_replicas_do_not_spoil_each_other(house: House) -> None:
    """The same object from two at once, one of which sends rubbish under its name."""
    info = info_of(A)
    house.send(A, 0, 1, replica="lumi/a")
    house.store.begin(info.digest, len(A), replica="sara/a")
    rubbish = house.store.upload(info.digest, len(A), replica="sara/a").writer(2)
    assert rubbish is not None
    rubbish.write([b"x" * PIECE])
    rubbish.finish()
    house.send(A, replica="lumi/a")
    house.commit(A, replica="lumi/a")
    assert house.store.path(info.digest).read_bytes() == A  # type: ignore[union-attr]
    house.commit(A, replica="sara/a")  # there is the object: its own upload is not needed
    assert house.files() == 1


def test_two_honest_uploads_of_one_object(house: House) -> None:
    for replica in ("lumi/a", "sara/a"):
        house.send(A, replica=replica)
    for replica in ("lumi/a", "sara/a"):
        house.commit(A, replica=replica)
    assert house.store.used_bytes == len(A)


def test_quota(tmp_path: Path) -> None:
    house = House(tmp_path / "store", quota_bytes=2 * len(A) + 5)
    house.send(A)
    house.commit(A)
    house.send(B, 0)
    fault(
        house.send, C, status=507, text=r"blob store has 0.0 MB of 0.0 MB left, .* wait, or raise"
    )
    house.send(B)  # what had begun goes on
    house.commit(B)
    house.store.discard(info_of(A).digest)
    house.send(C)
    house.restart()
    assert house.store.used_bytes == len(B) + len(C), "the quota outlives a restart"
    fault(house.send, A, status=507, text="wait, or raise its quota")


def test_bound_of_a_replica(tmp_path: Path) -> None:
    house = House(tmp_path / "store", replica_bytes=len(A) + 10)
    house.send(A, 0)
    fault(house.send, B, 0, status=507, text="lumi/a has uploads of .* finish those first")
    house.send(B, 0, replica="lumi/b")
    house.send(A)
    house.commit(A)
    house.send(B, 0)
    fault(house.send, C, 0, status=507, text="lumi/a has uploads", replica="lumi/a")
    fault(
        house.store.begin, "0" * 64, (1 << 32) * PIECE + 1, replica="lumi/c", status=413,
        text="are too many for any store",
    )  # fmt: skip


def test_publish_and_withdraw(house: House, tmp_path: Path) -> None:
    path, info = tmp_path / "theta", info_of(A)
    path.write_bytes(A)
    house.store.publish(info, path)
    assert house.store.path(info.digest) == path
    assert house.store.begin(info.digest, len(A), replica="lumi/a").complete
    assert house.store.used_bytes == 0, "it is its owner's"
    assert house.store.take(info.digest) is None, "only what was uploaded"
    house.store.discard(info.digest)
    house.clock.advance(1e6)
    house.store.collect([], older_than_s=1.0)
    assert path.exists()
    house.store.withdraw(info.digest)
    house.store.withdraw(info.digest)
    assert house.store.path(info.digest) is None
    path.write_bytes(A[1:])
    with pytest.raises(StateError, match=rf"theta has {len(A) - 1} bytes, {len(A)} were announced"):
        house.store.publish(info, path)


def test_take_and_discard(house: House) -> None:
    house.send(A)
    house.commit(A)
    taken = house.store.take(info_of(A).digest)
    assert taken is not None
    house.clock.advance(1e6)
    house.store.collect([], older_than_s=1.0)
    assert taken.read_bytes() == A, "not under its reader"
    house.store.discard(info_of(A).digest)
    house.store.discard(info_of(A).digest)
    assert not taken.exists()
    assert house.store.path(info_of(A).digest) is None
    assert house.store.take(info_of(A).digest) is None


def test_collect(house: House) -> None:
    """What is referenced, taken, or was used lately stays; an abandoned upload goes."""
    for data in (A, B):
        house.send(data)
        house.commit(data)
    house.send(C, 0)
    open_upload = house.store.upload(info_of(C).digest, len(C), replica="lumi/a")
    house.clock.advance(50.0)
    house.restart()  # an age does not outlive its process: it begins anew
    open_upload.close()
    house.clock.advance(50.0)
    assert house.store.collect([], older_than_s=60.0) == 0
    house.store.path(info_of(A).digest)
    house.clock.advance(20.0)
    assert house.store.collect([info_of(B).digest], older_than_s=60.0) == len(C)
    assert house.store.path(info_of(A).digest) is not None, "used lately"
    assert house.store.path(info_of(B).digest) is not None, "referenced"
    fault(
        house.store.upload, info_of(C).digest, len(C), replica="lumi/a", status=409,
        text="no such upload: begin again",
    )  # fmt: skip
    house.clock.advance(100.0)
    assert house.store.collect([], older_than_s=60.0) == len(A) + len(B)
    assert house.files() == 0
    house.send(C)
    house.commit(C)


def test_rubbish_is_swept(house: House) -> None:
    for name in ("objects/note.txt", "objects/" + "a" * 63, "uploads/x.part", "uploads/readme"):
        (house.folder / name).write_text("?")
    house.restart()
    assert house.files() == 0


def test_unusable_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match=r"blob store .* cannot be used .* another folder"):
        House(tmp_path / "file")


@pytest.mark.parametrize(
    "name", ["../x", "A" * 64, "a" * 63, "a" * 64 + "\n", "a" * 32 + "/" + "b" * 31]
)
def test_names_never_reach_the_disk(house: House, name: str) -> None:
    with pytest.raises(AssertionError, match=r"validated where they come in"):
        house.store.begin(name, 1, replica="lumi/a")
    with pytest.raises(AssertionError, match=r"validated where they come in"):
        house.store.begin("a" * 64, 1, replica="../x")
    assert house.store.path(name) is None


def test_many_begun_uploads_keep_few_files_open(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And each goes on where it was, whoever's files were closed meanwhile."""
    monkeypatch.setattr("pww.central.blobs.MAX_OPEN", 3)
    objects = [bytes([n]) * (2 * PIECE) for n in range(8)]
    before = len(os.listdir("/proc/self/fd"))
    for number, data in enumerate(objects):
        house.clock.advance(1.0)
        house.send(data, number % 2)
    assert len(os.listdir("/proc/self/fd")) - before <= 2 * 3
    for data in objects:
        assert (
            len(house.store.begin(info_of(data).digest, len(data), replica="lumi/a").missing) == 1
        )
        house.send(data)
        house.commit(data)
        assert house.store.path(info_of(data).digest).read_bytes() == data  # type: ignore[union-attr]


def test_who_begins_and_never_ends_loses_the_oldest(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pww.central.blobs.MAX_BEGUN", 3)
    for number in range(5):
        house.clock.advance(1.0)
        house.store.begin(f"{number:064x}", 0, replica="lumi/a")
    house.store.begin("f" * 64, 0, replica="sara/a")
    fault(house.store.upload, f"{1:064x}", 0, replica="lumi/a", status=409, text="no such upload")
    for number in (2, 3, 4):
        house.store.upload(f"{number:064x}", 0, replica="lumi/a")
    house.store.upload("f" * 64, 0, replica="sara/a")


def test_what_somebody_removed_is_not_there_and_is_brought_again(house: House) -> None:
    """An object, an upload on its way, and a published file."""
    info = info_of(A)
    house.send(A)
    house.commit(A)
    (house.folder / "objects" / info.digest).unlink()
    assert house.store.path(info.digest) is None
    assert house.store.take(info.digest) is None
    assert not house.store.begin(info.digest, len(A), replica="lumi/a").complete
    house.send(A)
    for path in (house.folder / "uploads").glob("*.part"):
        path.unlink()
    fault(house.commit, A, status=409, text="the upload is gone: begin again")
    house.send(A)
    house.commit(A)
    theirs = house.folder / "published"
    theirs.write_bytes(B)
    house.store.publish(info_of(B), theirs)
    theirs.write_bytes(B[:-1])
    assert house.store.path(info_of(B).digest) is None
