"""One owner for a folder, whatever becomes of it; files that are old or new and never a part."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pww.errors import InUse, StateError
from pww.folder import owned, sync_tree, write_durably

ROOT = Path(__file__).parents[2]
OWNER = """
import sys
from pathlib import Path
from pww.folder import owned
with owned(Path(sys.argv[1]), remedy="-"):
    print("mine", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def owner(tmp_path: Path):
    """Another process that owns `tmp_path / "run"`."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "run")], stdout=subprocess.PIPE,
        stdin=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "mine\n"
    yield process
    process.kill()
    process.communicate()


def test_locks_of_other_names_are_others(owner, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with owned(folder, remedy="-", name="other.lock"):
        with pytest.raises(InUse, match="in use"), owned(folder, remedy="-", name="other.lock"):
            pass
        with pytest.raises(InUse, match="in use"), owned(folder, remedy="-"):
            pass


def test_a_second_owner_is_refused_until_the_first_is_killed(owner, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(StateError) as refused, owned(run, remedy="stop that one"):
        pass
    assert str(refused.value) == f"{run} is in use by another process: stop that one"
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    with owned(run, remedy="stop that one"):
        pass


def test_an_owner_in_this_process_counts_too_and_lets_go_on_error(tmp_path: Path) -> None:
    with owned(tmp_path, remedy="-"), pytest.raises(StateError), owned(tmp_path, remedy="-"):
        pass
    with pytest.raises(KeyError), owned(tmp_path, remedy="-"):
        raise KeyError
    with owned(tmp_path, remedy="-"):
        pass


def test_a_child_does_not_keep_the_folder(tmp_path: Path) -> None:
    program = "print('up', flush=True); input()"
    with owned(tmp_path, remedy="-"):
        child = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            close_fds=False,
        )  # fmt: skip
    with child:
        assert child.stdout is not None
        child.stdout.readline()  # it runs its own program: what it did not inherit is closed
        with owned(tmp_path, remedy="-"):
            assert child.poll() is None
        child.communicate(b"\n")


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for folder in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(StateError) as refused, owned(folder, remedy="-"):
            pass
        assert str(folder) in str(refused.value)
        assert "run.root" in str(refused.value)


# ------------------------------------------------------------------------------------- files


def test_writing_replaces_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_durably(path, b"old and long")
    write_durably(path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(("owner", "step"), [(os, "fsync"), (Path, "replace"), (Path, "open")])
def test_a_failure_keeps_the_old_file_and_leaves_no_part(
    tmp_path: Path, monkeypatch, owner, step
) -> None:
    path = tmp_path / "file"
    write_durably(path, b"old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(owner, step, full)
        with pytest.raises(OSError, match="No space left"):
            write_durably(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def _calls(trace: list[str], monkeypatch) -> None:
    """Notes the order of fsyncs (by what is synced) and renames."""
    fsync, rename = os.fsync, Path.replace

    def noting_fsync(handle: int) -> None:
        trace.append(f"fsync {os.path.basename(os.readlink(f'/proc/self/fd/{handle}'))}")
        fsync(handle)

    def noting_rename(self: Path, target: Path) -> Path:
        trace.append(f"rename {self.name} {target.name}")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(Path, "replace", noting_rename)


def test_bytes_are_on_disk_before_the_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch
) -> None:
    trace: list[str] = []
    _calls(trace, monkeypatch)
    write_durably(tmp_path / "file", b"data")
    assert trace == ["fsync file.part", "rename file.part file", f"fsync {tmp_path.name}"]


def test_a_tree_is_synced_to_its_last_file_and_folder(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "top" / "deep" / "deeper").mkdir(parents=True)
    (tmp_path / "top" / "a").write_text("a")
    (tmp_path / "top" / "deep" / "deeper" / "b").write_text("b")
    trace: list[str] = []
    _calls(trace, monkeypatch)
    sync_tree(tmp_path / "top")
    assert sorted(trace) == [f"fsync {name}" for name in ("a", "b", "deep", "deeper", "top")]


def test_a_private_file_is_its_owners_from_the_first_byte(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "key"
    left = tmp_path / "key.part"
    left.write_bytes(b"of a crash")
    left.chmod(0o666)
    modes = []
    fsync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda handle: (modes.append(os.fstat(handle).st_mode), fsync(handle))
    )
    write_durably(path, b"secret", private=True)
    assert modes[0] & 0o777 == 0o600
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_bytes() == b"secret"
