"""A phase that becomes durable beside the next one: nothing leaves before, a stop waits for it."""

import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "programs"))

from lone_replica import SPACE, Lone, Pull, alone, drawn_for_merged

from pww.central.audit import audit
from pww.errors import CheckpointError, Stopped

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def group():
    ranks = alone()
    yield ranks
    ranks.close()


@pytest.fixture
def ranks(group):
    group.asked.clear()
    return group


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


class Copy:
    """A copy that waits, or does something else, before it is written."""

    def __init__(self, inner, before) -> None:
        self.inner, self.before = inner, before

    def write(self, folder: Path) -> None:
        self.before(folder)
        self.inner.write(folder)


class Watched(Pull):
    """A `Pull` whose copies are watched."""

    def __init__(self, before) -> None:
        super().__init__()
        self.before = before

    def copy_inner(self) -> Copy:
        return Copy(super().copy_inner(), self.before)


def phases(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def check_exactly_once(run: Path) -> None:
    books = audit(run)
    assert books.ok
    assert (books.exactly_once, books.merges) == (11, 6)
    assert drawn_for_merged(run) == Counter(range(SPACE.num_windows))


def test_the_next_phase_runs_while_a_phase_is_written_and_nothing_is_sent(run, ranks) -> None:
    trained, seen = threading.Event(), []
    trainer = Watched(lambda folder: None)

    def before(folder: Path) -> None:
        if folder.parent.name.startswith("phase-000001"):
            assert trained.wait(PATIENCE_S)

    def on_batch() -> None:
        if trainer.step == 5:  # of the third phase
            seen.append((phases(run), lone.report.totals.merged, audit(run).merges))
            trained.set()

    trainer.before, trainer.on_batch = before, on_batch
    lone = Lone(run, ranks, trainer=trainer)
    lone.train(overlap=True)
    assert seen == [(["phase-000000", "phase-000001.part"], 1, 1)]
    check_exactly_once(run)


def test_what_is_written_is_the_end_of_the_phase_and_not_what_came_after(run, ranks) -> None:
    trained = threading.Event()
    trainer = Watched(lambda folder: trained.wait(PATIENCE_S))

    def on_batch() -> None:
        if trainer.step == 4:
            trained.set()
            ranks.ask_to_stop()

    trainer.on_batch = on_batch
    with pytest.raises(Stopped):
        Lone(run, ranks, trainer=trainer).train(overlap=True)
    again = Pull()
    again.load_inner(run / "checkpoints" / "phase-000000" / "inner")
    assert again.step == 2


def test_a_stop_waits_for_what_is_being_written(run, ranks) -> None:
    def before(folder: Path) -> None:
        if folder.parent.name.startswith("phase-000001"):
            assert ranks.asked.wait(PATIENCE_S)

    trainer = Watched(before)
    trainer.on_batch = lambda: ranks.ask_to_stop() if trainer.step == 5 else None
    lone = Lone(run, ranks, trainer=trainer)
    with pytest.raises(Stopped, match="stopped after 1 steps of a phase, which is not delivered"):
        lone.train(overlap=True)
    assert phases(run) == ["phase-000000", "phase-000001"]
    pending = lone.outbox.pending
    assert pending is not None
    assert pending.folder.name == "phase-000001"
    ranks.asked.clear()
    again = Lone(run, ranks)
    assert again.outbox.pending is not None
    assert again.outbox.pending.offer == pending.offer
    again.train(overlap=True)
    check_exactly_once(run)


@pytest.mark.parametrize("phase", [0, 2, 5])
def test_a_disk_that_refuses_ends_the_replica_and_the_phase_before_is_intact(
    run, ranks, phase: int
) -> None:
    def before(folder: Path) -> None:
        if folder.parent.name.startswith(f"phase-{phase:06d}"):
            raise CheckpointError(f"{folder}: no space left")

    lone = Lone(run, ranks, trainer=Watched(before))
    with pytest.raises(CheckpointError) as fault:
        lone.train(overlap=True)
    told = str(fault.value)
    assert told.startswith(f"cannot write {run}/checkpoints/phase-{phase:06d}: ")
    assert "no space left. The checkpoints before it are intact: make room, then go on with" in told
    assert phases(run) == [f"phase-{number:06d}" for number in range(phase)][-2:]
    assert lone.outbox.pending is None
    assert lone.trainer.step <= 2 * phase + 4
    Lone(run, ranks).train(overlap=True)
    check_exactly_once(run)


def test_a_phase_that_went_to_nan_is_durable_before_it_is_delivered(run, ranks) -> None:
    trainer = Watched(lambda folder: None)
    trainer.nan_in = (2,)
    Lone(run, ranks, trainer=trainer).train(overlap=True)
    books = audit(run)
    assert (books.ok, books.exactly_once) == (True, 11)


def test_without_overlap_nothing_is_copied(run, ranks) -> None:
    def before(folder: Path) -> None:
        raise AssertionError("copied")

    trainer = Watched(before)
    trainer.save_inner = lambda folder: Pull.copy_inner(trainer).write(folder)
    Lone(run, ranks, trainer=trainer).train()
    check_exactly_once(run)
