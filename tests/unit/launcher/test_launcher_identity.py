"""Which code a run was started with, and the copy that queued jobs run."""

import json
import os
from pathlib import Path

import pytest

from pww.config import paths
from pww.errors import StateError
from pww.launcher import identity


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "clone" / "pww"
    (folder / "sub" / "__pycache__").mkdir(parents=True)
    (folder / "worker.py").write_text("one\n")
    (folder / "sub" / "a.py").write_text("a\n")
    (folder / "sub" / "__pycache__" / "a.pyc").write_bytes(b"x")
    monkeypatch.setattr(paths, "PACKAGE", folder)
    return folder


def test_a_digest_is_of_names_and_bytes(package: Path) -> None:
    before = identity.digest(package)
    (package / "sub" / "__pycache__" / "b.pyc").write_bytes(b"y")
    assert identity.digest(package) == before
    (package / "sub" / "a.py").rename(package / "sub" / "b.py")
    renamed = identity.digest(package)
    (package / "sub" / "b.py").write_text("b\n")
    assert len({before, renamed, identity.digest(package)}) == 3


def test_code_is_kept_once_for_each_state(package: Path, tmp_path: Path) -> None:
    code, _ = identity.current()
    kept = identity.keep(code, tmp_path / "outputs")
    assert kept == tmp_path / "outputs" / "code" / code.digest
    assert identity.digest(kept / "pww") == code.digest
    assert not (kept / "pww" / "sub" / "__pycache__").exists()
    inode = (kept / "pww").stat().st_ino
    assert identity.keep(code, tmp_path / "outputs") == kept
    assert (kept / "pww").stat().st_ino == inode
    (package / "worker.py").write_text("two\n")
    assert identity.keep(identity.current()[0], tmp_path / "outputs") != kept
    assert (kept / "pww" / "worker.py").read_text() == "one\n"
    assert not list((tmp_path / "outputs" / "code").glob(".part-*"))


def test_code_that_was_purged_in_part_is_kept_again(package: Path, tmp_path: Path) -> None:
    code, _ = identity.current()
    kept = identity.keep(code, tmp_path)
    (kept / "pww" / "worker.py").unlink()
    assert identity.keep(code, tmp_path) == kept
    assert identity.digest(kept / "pww") == code.digest


def test_kept_code_is_as_new_as_its_copy(package: Path, tmp_path: Path) -> None:
    """A purge of scratch goes by age, and a clone may be older than it allows."""
    os.utime(package / "worker.py", (1e9, 1e9))
    kept = identity.keep(identity.current()[0], tmp_path)
    assert (kept / "pww" / "worker.py").stat().st_mtime > 1e9


def test_no_room_to_note_the_code(package: Path, tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"^cannot note the code in .*gone: .*; make room$"):
        identity.freeze(*identity.current(), tmp_path / "gone")


def test_no_room_for_the_code(package: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match=r"^cannot keep the submitted code in .*give run\.root=…$"):
        identity.keep(identity.current()[0], tmp_path / "file")


def test_a_run_that_goes_on_with_other_code_says_so(package: Path, tmp_path: Path) -> None:
    code, diff = identity.current()
    assert (code.commit, diff) == ("none", b"")
    assert identity.freeze(code, diff, tmp_path) == ""
    assert identity.freeze(code, diff, tmp_path) == ""
    (package / "worker.py").write_text("two\n")
    newer, _ = identity.current()
    said = identity.freeze(newer, b"diff --git\n", tmp_path)
    assert said == "the code has changed since this run was started (commit none -> none)"
    assert (tmp_path / "code.diff").read_bytes() == b"diff --git\n"
    written = json.loads((tmp_path / "code.json").read_text())
    assert written["digest"] == newer.digest
    assert written["packages"]["numpy"] != "none"
    (tmp_path / "code.json").write_text("torn")
    assert identity.recorded(tmp_path) is None


def test_changes_without_end_are_not_kept(package: Path, tmp_path: Path) -> None:
    identity.freeze(identity.current()[0], b"x" * (identity.MAX_DIFF + 1), tmp_path)
    assert (
        (tmp_path / "code.diff").read_text().endswith(" bytes of changes, too many to keep here\n")
    )
