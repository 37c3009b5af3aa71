"""Room in the folders of a run: file systems, quotas of both kinds, and what is said of them."""

from functools import cache
from pathlib import Path

import pytest

from pww.config import paths
from pww.config.load import compose
from pww.launcher import preflight_folders as folders
from pww.launcher.finding import Finding

LFS = """
case "$*" in
  "quota -q -u "*) echo "     /scratch" ; echo "  $KIB 0 $LIMIT - $FILES 0 2000 -" ;;
  "project -d "*) echo "  $PROJECT - $3" ;;
  "quota -q -p 77 "*) echo "/scratch 900 0 1000 - 10 0 0 -" ;;
  *) exit 1 ;;
esac
"""


class Space:
    """What the file system says of itself."""

    f_bavail, f_frsize, f_files, f_favail = 10**9, 4096, 10**6, 10**6


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "PROJECT", tmp_path)
    monkeypatch.setattr(folders, "MOUNTS", tmp_path / "mounts")
    monkeypatch.setattr(folders.os, "statvfs", lambda path: Space())
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


composed = cache(lambda words: compose(list(words)))


def told(*words: str) -> dict[str, Finding]:
    return {one.what: one for one in folders.findings(composed(words))}


def command(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/bash\n{text}\n")
    (folder / name).chmod(0o755)


def test_the_folders_that_a_run_writes_to(tmp_path: Path) -> None:
    scratch = f"site.scratch={tmp_path}/scratch"
    assert list(told(scratch)) == ["runs", "home", "corpora", "scratch"]
    assert list(told("data=digits", "model=resnet_digits", "parallel=ddp")) == ["runs", "home"]
    one = told()["runs"]
    assert one.told == (f"{tmp_path}/outputs: 4096 GB and 1000000 files left on its file system")
    assert one.figures == {"free_bytes": 4096e9, "files": 10**6}


def test_a_folder_that_may_not_be_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders.os, "access", lambda path, mode: False)
    one = told()["runs"]
    assert one.state == "bad"
    assert "may not be written to; give another folder" in one.told


@pytest.mark.parametrize(
    ("blocks", "counts", "files", "state", "said"),
    [
        (100, 10**6, 10**6, "bad", "; make room"),
        (10**6, 10**6, 10**6, "warning", "; a few checkpoints may fill it"),
        (10**9, 10**6, 100, "bad", "; make room"),
        (10**9, 10**6, 5000, "warning", "; a few checkpoints may fill it"),
        (10**9, 0, 0, "good", "4096 GB left on its file system"),  # it does not count files
    ],
)
def test_a_file_system(
    blocks: int, counts: int, files: int, state: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Space, "f_bavail", blocks)
    monkeypatch.setattr(Space, "f_files", counts)
    monkeypatch.setattr(Space, "f_favail", files)
    one = told()["runs"]
    assert one.state == state
    assert one.told.endswith(said)


def lustre(folder: Path, monkeypatch: pytest.MonkeyPatch, **said: str) -> Finding:
    (folder / "mounts").write_text(
        f"/dev/sda / ext4 rw 0 0\n10.0.0.1@tcp:/scratch {folder} lustre rw,flock 0 0\n"
    )
    command(folder, "lfs", LFS)
    for name, value in {"KIB": "1", "LIMIT": "0", "FILES": "5", "PROJECT": "0", **said}.items():
        monkeypatch.setenv(name, value)
    return told()["runs"]


def test_a_quota_of_lustre(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free_kib = 30 * 10**6
    one = lustre(tmp_path, monkeypatch, KIB="1000", LIMIT=str(free_kib + 1000))
    assert one.state == "warning", "1,995 files are left"
    assert one.told.startswith(
        f"{tmp_path}/outputs: 31 GB and 1995 files left on its file system and by your quota; "
    )
    assert one.figures == {"free_bytes": free_kib * 1024, "files": 1995}


def test_a_full_quota_counts_although_the_disk_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lustre(tmp_path, monkeypatch, KIB="2000*", LIMIT="1000").state == "bad"
    assert lustre(tmp_path, monkeypatch, LIMIT="10000000000", FILES="[1999]").state == "bad"


def test_the_projects_quota_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = lustre(tmp_path, monkeypatch, PROJECT="77", LIMIT="10000000000")
    assert one.state == "bad"
    assert one.figures["free_bytes"] == 100 * 1024
    assert "by your quota and by the project's quota" in one.told


def test_a_quota_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its source; a line of another file system says nothing."""
    shared = tmp_path / "with space"
    shared.mkdir()
    monkeypatch.setattr(paths, "PROJECT", shared)
    escaped = str(shared).replace(" ", "\\040")
    (tmp_path / "mounts").write_text(f"/dev/sda / ext4 rw 0 0\nnas:/home {escaped} nfs4 rw 0 0\n")
    lines = [
        "Disk quotas for user me (uid 1000):",
        "  Filesystem  blocks   quota   limit   grace   files   quota   limit   grace",
        "/dev/sda 5 1 1 0 5 1 1 0",
        "nas:/home 1000000* 500000 41000000 1733000000 10 0 0 0",
    ]
    command(tmp_path, "quota", 'test "$*" = -wp && cat <<END\n' + "\n".join(lines) + "\nEND\n")
    one = told()["runs"]
    # The lower of the two limits is what can be relied upon
    assert (one.state, one.figures["free_bytes"]) == ("bad", 0.0)
    command(tmp_path, "quota", f"echo {lines[3].replace('500000 ', '0 ')!r}")
    one = told()["runs"]
    assert (one.state, one.figures["free_bytes"]) == ("good", 40_000_000 * 1024)


@pytest.mark.parametrize(
    "text", ["exit 1", "echo nas:/home none", "echo nas:/home a b c d e f g h", "kill -9 $$"]
)
def test_nobody_can_be_asked(text: str, tmp_path: Path) -> None:
    (tmp_path / "mounts").write_text(f"nas:/home {tmp_path} nfs4 rw 0 0\n")
    command(tmp_path, "quota", text)
    assert told()["runs"].told.endswith("left on its file system")


def test_a_machine_without_mounts() -> None:
    assert told()["runs"].state == "good"


def test_quota_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of NFS that is gone."""
    monkeypatch.setattr(folders, "ANSWER_S", 0.2)
    (tmp_path / "mounts").write_text(f"nas:/home {tmp_path} nfs4 rw 0 0\n")
    command(tmp_path, "quota", "exec sleep 60")
    assert told()["runs"].state == "good"
