"""A file that comes in pieces: resumed, whole or not there, whatever breaks."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3
from google_crc32c import value
from hypothesis import given, settings
from hypothesis import strategies as st

from pww.transport.piece_file import PieceFile, Unfinished, WrongDigest, runs

PIECE = 1000


def opened(base: Path, data: bytes, *, piece_bytes: int = PIECE) -> PieceFile:
    return PieceFile(
        base, digest=blake3(data).hexdigest(), size_bytes=len(data), piece_bytes=piece_bytes
    )


def put(file: PieceFile, data: bytes, number: int) -> None:
    start, stop = file.span(number)
    file.write(data[start:stop], start)
    file.finish(number)


def complete(base: Path) -> tuple[bytes, PieceFile]:
    """A file all of whose pieces are in."""
    data = np.random.default_rng(0).bytes(2500)
    file = opened(base, data)
    for number in file.missing():
        put(file, data, number)
    return data, file


def full(fd: int, view: memoryview, at: int) -> int:
    """`pwrite` to a disk without room."""
    raise OSError(errno.ENOSPC, "No space left on device")


@given(
    size=st.integers(0, 5500),
    seed=st.integers(0, 1000),
    stops=st.lists(st.integers(0, 6), max_size=3),
    advance=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_any_order_any_number_of_lives(
    tmp_path_factory: pytest.TempPathFactory, size: int, seed: int, stops: list[int], advance: bool
) -> None:
    """Pieces in any order, over any number of processes, each piece once: the exact file."""
    random = np.random.default_rng(seed)
    data, base = random.bytes(size), tmp_path_factory.mktemp("pieces") / "file"
    sent = 0
    for stop in [*stops, 100]:
        file = opened(base, data)
        todo = list(random.permutation(file.missing()))
        for number in todo[:stop]:
            put(file, data, int(number))
            sent += 1
            if advance:
                file.advance()
        if not file.missing():
            break
        file.close()
    file.publish(base)
    assert base.read_bytes() == data
    assert sent == -(-size // PIECE)
    assert list(base.parent.iterdir()) == [base]


def test_nothing_visible_before(tmp_path: Path) -> None:
    data = bytes(2500)
    file = opened(tmp_path / "file", data)
    for number in file.missing():
        put(file, data, number)
    assert not (tmp_path / "file").exists()
    file.publish(tmp_path / "other")
    assert (tmp_path / "other").read_bytes() == data


def test_wrong_bytes(tmp_path: Path) -> None:
    data = bytes(2500)
    file = opened(tmp_path / "file", data)
    for number in file.missing():
        put(file, b"\1" * 2500, number)
    with pytest.raises(WrongDigest, match=r"2500 bytes with BLAKE3 \w{64} were announced, those"):
        file.publish(tmp_path / "file")
    assert not list(tmp_path.iterdir()), "all is forgotten"
    assert opened(tmp_path / "file", data).missing() == [0, 1, 2]


@pytest.mark.parametrize("again", [False, True])
def test_wrong_piece(tmp_path: Path, again: bool) -> None:
    """Found by its sum, missing from then on, in another process too; and then it comes right."""
    data = np.random.default_rng(0).bytes(2500)
    file = opened(tmp_path / "file", data)
    for number in file.missing():
        put(file, bytes(2500) if number == 1 else data, number)
        file.advance()
    with pytest.raises(WrongDigest):
        file.publish(tmp_path / "file", keep=True)
    assert not (tmp_path / "file").exists()
    sums = [value(data[start:stop]) for start, stop in map(file.span, range(3))]
    assert [file.check(number, sums[number]) for number in range(3)] == [True, False, True]
    assert not file.check(1, value(bytes(1000))), "it is missing"
    with pytest.raises(Unfinished, match=r"1 pieces of \w{16}… are missing"):
        file.publish(tmp_path / "file")
    if again:
        file.close()
        file = opened(tmp_path / "file", data)
    assert file.missing() == [1]
    put(file, data, 1)
    file.publish(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == data


def test_no_room_to_say_that_a_piece_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal may lose what is right, and never claims what is not."""
    data = np.random.default_rng(0).bytes(3500)
    file = opened(tmp_path / "file", data)
    for number in (0, 3):
        put(file, bytes(3500), number)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left on device"):
        file.check(0, value(data[:PIECE]))
    monkeypatch.undo()
    assert 0 in file.missing()
    put(file, data, 2)
    file.close()
    assert 0 in opened(tmp_path / "file", data).missing()


def test_who_asks_for_a_piece_while_the_whole_becomes_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be told that it has another one, but no piece of what was found right comes again."""
    data, file = complete(tmp_path / "file")
    sync, answers = os.fsync, []

    def meanwhile(fd: int) -> None:
        answers.append((file.check(0, 0), file.check(1, value(data[PIECE : 2 * PIECE]))))
        sync(fd)

    monkeypatch.setattr(os, "fsync", meanwhile)
    file.publish(tmp_path / "file")
    assert answers[0] == (False, True)
    assert file.missing() == []
    assert (tmp_path / "file").read_bytes() == data


def test_given_up_while_the_whole_becomes_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What begins under its name meanwhile is not taken for it."""
    data, file = complete(tmp_path / "file")
    sync, begun = os.fsync, []

    def meanwhile(fd: int) -> None:
        sync(fd)
        file.discard()
        begun.append(opened(tmp_path / "file", data))

    monkeypatch.setattr(os, "fsync", meanwhile)
    with pytest.raises(OSError, match=r"closed while it was published: '.*/file.part'"):
        file.publish(tmp_path / "file")
    monkeypatch.undo()
    assert not (tmp_path / "file").exists()
    for number in begun[0].missing():
        put(begun[0], data, number)
    begun[0].publish(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == data


def test_disk_that_fails_in_the_middle_of_a_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No byte of it is hashed twice: what is right is found right when the disk works again."""
    data, file = complete(tmp_path / "file")
    whole, reads = os.preadv, []

    def failing(fd: int, views: list[memoryview], at: int) -> int:
        reads.append(at)
        if len(reads) == 2:
            raise OSError(errno.EIO, "Input/output error")
        return whole(fd, [views[0][:600]], at)

    monkeypatch.setattr(os, "preadv", failing)
    with pytest.raises(OSError, match="Input/output error"):
        file.advance()
    file.publish(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == data


def test_another_file_begins_anew(tmp_path: Path) -> None:
    """Another content, size or piece size: nothing of the old one is believed."""
    old, new = b"a" * 2500, b"b" * 2500
    for data, piece in ((new, PIECE), (old[:-1], PIECE), (old, 500)):
        file = opened(tmp_path / "file", old)
        put(file, old, 1)
        file.close()
        other = opened(tmp_path / "file", data, piece_bytes=piece)
        assert len(other.missing()) == -(-len(data) // piece)
        other.discard()


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_torn_journal(tmp_path: Path, cut: int) -> None:
    """A crash in the middle of a row costs that piece and no other."""
    data = bytes(3500)
    file = opened(tmp_path / "file", data)
    for number in (3, 1):
        put(file, data, number)
    file.close()
    journal = tmp_path / "file.done"
    journal.write_bytes(journal.read_bytes()[:-cut])
    again = opened(tmp_path / "file", data)
    assert again.missing() == [0, 1, 2]
    for number in again.missing():
        put(again, data, number)
    again.publish(tmp_path / "file")


def test_lost_or_cut_part(tmp_path: Path) -> None:
    """A journal without its bytes claims nothing; rows out of range neither."""
    data = bytes(3500)
    for damage in ("gone", "cut", "rows"):
        file = opened(tmp_path / "file", data)
        put(file, data, 2)
        file.close()
        part, journal = tmp_path / "file.part", tmp_path / "file.done"
        if damage == "gone":
            part.unlink()
        elif damage == "cut":
            os.truncate(part, 100)
        else:
            journal.write_bytes(journal.read_bytes()[:-4] + b"\xff\xff\xff\xff")
        again = opened(tmp_path / "file", data)
        assert again.missing() == [0, 1, 2, 3]
        again.discard()


def test_cut_by_somebody_else(tmp_path: Path) -> None:
    data = bytes(2500)
    file = opened(tmp_path / "file", data)
    for number in file.missing():
        put(file, data, number)
    os.truncate(tmp_path / "file.part", 100)
    with pytest.raises(OSError, match="cut short by somebody else"):
        file.publish(tmp_path / "file")


def test_short_writes_and_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a `pwrite` did not take is written by the next; a full disk names the file."""
    data = np.random.default_rng(0).bytes(2500)
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, view, at: whole(fd, view[:7], at))
    file = opened(tmp_path / "file", data)
    for number in file.missing():
        put(file, data, number)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*/file.part'"):
        file.write(b"x", 0)
    monkeypatch.undo()
    file.publish(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == data


def test_runs() -> None:
    assert runs([]) == []
    assert runs([0, 1, 2, 5, 7, 8]) == [(0, 3), (5, 6), (7, 9)]
