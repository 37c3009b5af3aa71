import errno
import threading
from pathlib import Path

import pytest

from pww.clock import ManualClock
from pww.data.cache import published, withdrawn
from pww.errors import DataError
from pww.folder import owned


def test_an_entry_is_published_whole_and_once(tmp_path):
    entry = tmp_path / "cache" / "x-1"
    seen = []

    def build(folder):
        seen.append((folder.name, entry.exists()))
        (folder / "a").write_text("whole")

    for _ in range(2):
        published(entry, build=build, clock=ManualClock())
    assert seen == [("x-1.part", False)]
    assert (entry / "a").read_text() == "whole"
    assert sorted(path.name for path in entry.parent.iterdir()) == ["x-1", "x-1.lock"]


def test_a_failed_build_leaves_nothing_and_can_be_repeated(tmp_path):
    entry = tmp_path / "x-1"

    def fail(folder):
        (folder / "a").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        published(entry, build=fail, clock=ManualClock())
    assert [path.name for path in tmp_path.iterdir()] == ["x-1.lock"]
    published(entry, build=lambda folder: None, clock=ManualClock())
    assert entry.is_dir()


def test_garbage_of_any_crash_is_removed_but_not_a_live_build(tmp_path, caplog):
    caplog.set_level("INFO")
    for name in ("x-1.part", "y-2.part", "z-3.part"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").write_text("half")
    with owned(tmp_path / "z-3.lock", remedy="none"):
        published(tmp_path / "x-1", build=lambda folder: None, clock=ManualClock())
    assert not list((tmp_path / "x-1").iterdir())
    assert not (tmp_path / "y-2.part").exists()
    assert (tmp_path / "z-3.part").exists()
    assert (
        f"removed {tmp_path / 'y-2.part'}, left over from a build that was cut off" in caplog.text
    )


def test_waiting_for_another_builder_is_said_every_ten_seconds(tmp_path, caplog):
    caplog.set_level("INFO")
    entry = tmp_path / "x-1"
    other = owned(tmp_path / "x-1.lock", remedy="none")

    class Builder(ManualClock):
        """The other builder publishes after 25 seconds of this clock."""

        def wait(self, event: threading.Event, timeout_s: float) -> bool:
            was = super().wait(event, timeout_s)
            if self.monotonic() > 25 and not entry.exists():
                entry.mkdir()
                other.__exit__(None, None, None)
            return was

    other.__enter__()
    published(entry, build=lambda folder: pytest.fail("built twice"), clock=Builder())
    assert caplog.messages == [
        f"waiting for another process that prepares x-1 ({s} s so far)" for s in (0, 10, 20)
    ]


def test_an_entry_that_is_withdrawn_is_built_anew(tmp_path):
    entry = tmp_path / "x-1"
    for text in ("old", "new"):
        published(entry, build=lambda folder: (folder / "a").write_text(text), clock=ManualClock())  # noqa: B023
        kept = (entry / "a").open()
        assert kept.read() == text
        withdrawn(entry, clock=ManualClock())
        withdrawn(entry, clock=ManualClock())
        assert [path.name for path in tmp_path.iterdir()] == ["x-1.lock"]
        kept.seek(0)
        assert kept.read() == text, "who has it open keeps it"
        kept.close()


def test_an_entry_that_cannot_be_withdrawn_is_named(tmp_path, monkeypatch):
    (tmp_path / "x-1").mkdir()

    def refused(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(
        DataError, match=r"^cannot remove the tokenised corpus .*x-1: Permission de"
    ):
        withdrawn(tmp_path / "x-1", clock=ManualClock())
