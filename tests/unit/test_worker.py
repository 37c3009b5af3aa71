"""One rank in this process, from a run's folder to its exit code, with a closed form in it."""

import json
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))

from closed_form_site import ClosedForm
from full_device import WORDS

from pww import worker
from pww.central.audit import audit
from pww.config import paths
from pww.config.load import compose, read_config
from pww.data import prepare
from pww.errors import CheckpointError, PwwError, Stopped
from pww.folder import owned
from pww.log import QUIET, read_json_lines
from pww.trainer.ranks import Ranks
from pww.transport.tensorfile import TensorReader


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch) -> Iterator[None]:
    """The worker owns its process: puts back what it changes in this one."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    root = logging.getLogger()
    handlers = list(root.handlers)
    levels = {name: logging.getLogger(name).level for name in ("", "pww", *QUIET)}
    ours = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
    before = {number: signal.getsignal(number) for number in ours}
    yield
    root.handlers[:] = handlers
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    for number, handler in before.items():
        signal.signal(number, handler)
    leave_group()


@pytest.fixture(scope="module")
def tokenised(tmp_path_factory) -> Path:
    """A project folder with one small text and, after the first run, its tokens."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "data").mkdir()
    lines = (f"line {i} says {i * 7919 % 1000} and {i * 104729 % 1000}.\n" for i in range(4000))
    (folder / "data" / "text.txt").write_text("".join(lines))
    return folder


@pytest.fixture
def make_run(tokenised: Path, monkeypatch, tmp_path: Path) -> Callable[..., Path]:
    """A run folder as `pww.train` leaves it to the worker."""
    monkeypatch.setattr(paths, "PROJECT", tokenised)

    def make(*overrides: str) -> Path:
        config = compose(
            ["data=tinyshakespeare", "data.name=sample", "data.files=[text.txt]",
             "data.roots=[data]", "data.tokenizer.vocab_size=300", "data.max_windows=80",
             "model.seq_len=32", "darl.block_windows=4", "diloco.inner_steps=4",
             "optim.batch_windows=4", "metrics.wandb.mode=disabled", *overrides]
        )  # fmt: skip
        run = tmp_path / "run"
        run.mkdir(exist_ok=True)
        paths.freeze(config, run)
        return run

    return make


class Counted(ClosedForm):
    """Says what the worker asked of it."""

    made: ClassVar[list["Counted"]] = []

    def __init__(self, config, corpus, ranks) -> None:
        super().__init__(config, corpus, ranks)
        self.closed = 0
        self.ranks = ranks
        Counted.made.append(self)

    def close(self) -> None:
        self.closed += 1


class Interrupted(Counted):
    """Asked to stop (Ctrl-C) in the middle of its third phase."""

    number = signal.SIGINT

    def run(self, windows, **told):
        if self.step >= 8:
            on_step = told["on_step"]

            def step(**row) -> None:
                on_step(**row)
                os.kill(os.getpid(), self.number)

            told["on_step"] = step
        return super().run(windows, **told)


def rows(run: Path, split: str) -> list[dict]:
    return [row for row in read_json_lines(run / "metrics.jsonl") if row["split"] == split]


def leave_group() -> None:
    """The worker's ranks end with its process; here the next one starts in the same."""
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture(autouse=True)
def none_made() -> None:
    Counted.made = []


def test_a_run_to_its_end(make_run, capsys) -> None:
    run = make_run()
    assert worker.main([str(run)], engine=Counted) == 0
    said = capsys.readouterr()
    summary = said.out.splitlines()
    assert summary[0] == "corpus sample is exhausted: 5 phases merged, 0 rejected, 2,560 tokens"
    assert (run / "finished").read_text() == said.out
    books = audit(run)
    assert books.ok
    assert (books.exactly_once, books.merges) == (20, 5)
    (trainer,) = Counted.made
    assert trainer.closed == 1
    sent = [row["bytes_sent"] for row in rows(run, "outer")]
    assert [row["bytes_up"] for row in rows(run, "outer")] == [sum(sent[:n]) for n in range(5)]
    draws = [window for row in read_json_lines(run / "draws.jsonl") for window in row["windows"]]
    assert sorted(draws) == list(range(80))
    assert [row["round"] for row in rows(run, "eval")] == list(range(6))
    with TensorReader(run / "theta0.safetensors") as seed:
        assert seed.names == ("bias", "empty", "weight")
        assert float(seed.get("bias")) == 1.0
    assert "round 0: held-out loss" in said.err
    assert "[local/a]" not in said.err, "a lone replica needs no name"
    with owned(run, remedy="-"):
        pass  # the folder is let go of


class Second(Ranks):
    """The second rank of two, told by the first where the corpus is."""

    folder: ClassVar[Path]

    def __init__(self) -> None:
        super().__init__()
        self.rank = 1

    def share(self, work):
        return {"sample": Second.folder}


def test_a_second_rank_needs_no_text(make_run, tokenised: Path, monkeypatch) -> None:
    run = make_run()
    config = read_config(run / "config.yaml")
    corpus = prepare(
        config.data, seq_len=32, vocab_multiple=config.model.vocab_multiple, project=tokenised
    )
    Second.folder = corpus.folder
    got = []

    def engine(config, corpus, ranks):
        got.append(corpus)
        raise Stopped("enough is known")

    monkeypatch.setattr("pww.replica.groups.Ranks", Second)
    (tokenised / "data").rename(tokenised / "elsewhere")
    try:
        assert worker.main([str(run)], engine=engine) == Stopped.exit_code
    finally:
        (tokenised / "elsewhere").rename(tokenised / "data")
    assert got[0].folder == corpus.folder
    assert got[0].manifest == corpus.manifest


def test_an_interrupted_run_says_how_to_go_on_and_does(make_run, capsys) -> None:
    run = make_run()
    assert worker.main([str(run)], engine=Interrupted) == 130
    text = capsys.readouterr().err
    assert "stopped after 1 steps of a phase" in text
    assert f"go on with: python -m pww.train resume={paths.shown(run)}" in text
    assert "Traceback" not in text
    assert not (run / "finished").exists()
    assert Counted.made[0].closed == 1
    assert (audit(run).merges, audit(run).leased) == (2, 0)
    leave_group()
    assert worker.main([str(run)], engine=Counted) == 0
    assert Counted.made[1].step == 20, "the step count goes on"
    assert audit(run).exactly_once == 20
    assert [row["step"] for row in rows(run, "outer")] == [4, 8, 12, 16, 20]


@pytest.mark.parametrize("argv", [[], ["nowhere"], ["a", "b"]])
def test_it_wants_the_folder_of_a_run(argv: list[str], capsys) -> None:
    assert worker.main(argv) == 2
    assert capsys.readouterr().err.startswith("usage: python -m pww.worker RUN")


class OutOfTime(Interrupted):
    """Told by the queue that the job's time is nearly over."""

    number = signal.SIGUSR2


def test_a_stop_that_the_queue_asked_for_leaves_a_marker(make_run) -> None:
    run = make_run()
    assert worker.main([str(run)], engine=OutOfTime) == 130
    assert (run / "requeue").exists()
    leave_group()
    (run / "requeue").unlink()  # as the batch script does
    assert worker.main([str(run)], engine=Interrupted) == 130
    assert not (run / "requeue").exists(), "a person's wish is no reason to go on"


def test_a_place_that_is_none_is_said(make_run, monkeypatch, capsys) -> None:
    monkeypatch.setenv("RANK", "first")
    monkeypatch.setattr(worker, "die_with_parent", lambda: None)
    assert worker.main([str(make_run())], engine=Counted) == 1
    assert "RANK=first: must be a whole number" in capsys.readouterr().err
    assert Counted.made == []


def test_a_run_of_more_ranks_is_not_trained_by_one(make_run, capsys) -> None:
    run = make_run("parallel.ranks=2")
    assert worker.main([str(run)], engine=Counted) == 1
    text = capsys.readouterr().err
    assert "this process was started alone, and the run has parallel.ranks=2" in text
    assert Counted.made == []


def test_a_damaged_configuration_is_told_with_every_fault(make_run, capsys) -> None:
    run = make_run()
    file = run / "config.yaml"
    file.write_text(file.read_text().replace("inner_steps: 4", "inner_steps: none", 1) + "odd: 1\n")
    assert worker.main([str(run)], engine=Counted) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all(str(file) in line for line in lines)
    assert Counted.made == []


def test_a_run_in_use_is_refused_before_anything_is_built(make_run, capsys) -> None:
    run = make_run()
    with owned(run, remedy="-"):
        assert worker.main([str(run)], engine=Counted) == 1
    text = capsys.readouterr().err
    assert f"{run} is in use by another process: wait for it" in text
    assert "run.name" in text
    assert Counted.made == []


def test_a_corpus_smaller_than_a_phase_is_told_with_the_numbers(make_run, capsys) -> None:
    run = make_run("diloco.inner_steps=100")
    assert worker.main([str(run)], engine=Counted) == 1
    text = capsys.readouterr().err
    assert "corpus sample has 80 windows" in text
    assert "diloco.inner_steps=100 x optim.batch_windows=4: lower one of them" in text
    assert "lower one of them, or raise data.max_windows=80" in text
    assert Counted.made == []


def test_an_engines_fault_is_its_sentence(make_run, capsys) -> None:
    def engine(config, corpus, ranks):
        raise PwwError("no such device: set site.device")

    run = make_run()
    assert worker.main([str(run)], engine=engine) == 1
    text = capsys.readouterr().err
    assert "no such device: set site.device" in text
    assert "go on with" not in text, "it would fail again"
    assert "Traceback" not in text


class Full(Counted):
    """The device has no room in the second phase."""

    def run(self, windows, **told):
        if self.step >= 4:
            raise torch.OutOfMemoryError(WORDS)
        return super().run(windows, **told)


def test_a_full_device_is_a_sentence_and_the_run_can_go_on(make_run, capsys) -> None:
    run = make_run()
    assert worker.main([str(run)], engine=Full) == 1
    text = capsys.readouterr().err
    assert (
        "rank 0: the device is out of memory (CUDA out of memory. Tried to allocate 2.00 GiB), and "
        "the run cannot go on" in text
    )
    assert f"go on with: python -m pww.train resume={paths.shown(run)}" in text
    assert "Traceback" not in text
    leave_group()
    assert worker.main([str(run)], engine=Counted) == 0
    assert audit(run).exactly_once == 20


def test_a_fault_of_ours_keeps_its_traceback(make_run) -> None:
    def engine(config, corpus, ranks):
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        worker.main([str(make_run())], engine=engine)


def test_an_unreadable_checkpoint_says_what_to_do(make_run, capsys) -> None:
    run = make_run()
    assert worker.main([str(run)], engine=Interrupted) == 130
    newest = max((run / "checkpoints").iterdir())
    whole = (newest / "entry.json").read_text()
    (newest / "entry.json").write_text(whole[:50])
    leave_group()
    capsys.readouterr()
    assert worker.main([str(run)], engine=Counted) == 1
    text = capsys.readouterr().err
    assert f"{newest} cannot be read" in text
    assert "remove it to go on from the phase before it" in text
    # and that leads somewhere
    shutil.rmtree(newest)
    leave_group()
    assert worker.main([str(run)], engine=Counted) == 0
    assert audit(run).exactly_once == 20


@pytest.mark.parametrize("step", ["theta0", "finished"])
def test_a_disk_that_refuses_is_a_sentence(make_run, capsys, step: str) -> None:
    run = make_run()
    part = "theta0.safetensors.part" if step == "theta0" else "finished.part"
    (run / part).mkdir()  # in the way: the write fails as on a bad disk
    assert worker.main([str(run)], engine=Counted) == 1
    text = capsys.readouterr().err
    assert f"cannot write {run / part.removesuffix('.part')}" in text
    assert "Traceback" not in text
    (run / part).rmdir()
    leave_group()
    assert worker.main([str(run)], engine=Counted) == 0
    assert audit(run).exactly_once == 20
    assert (run / "finished").exists()


def test_a_pending_deltas_lease_is_kept_over_a_stop(make_run) -> None:
    """Its blocks are still this replica's when it comes back: nobody trains them meanwhile."""

    class Full(Counted):
        """The verdict cannot be noted: the delta is merged, and pending here."""

        def run(self, windows, **told):
            result = super().run(windows, **told)
            if self.step == 8:
                self.ranks.ask_to_stop()
            return result

    run = make_run()
    assert worker.main([str(run)], engine=Full) == 130
    newest = max((run / "checkpoints").iterdir())
    entry = json.loads((newest / "entry.json").read_text())
    books = audit(run)
    if entry["verdict"] is None:
        assert books.leased in (0, 4), "decided meanwhile, or kept"
    leave_group()
    assert worker.main([str(run)], engine=Counted) == 0
    assert Counted.made[1].step == 20
    assert audit(run).exactly_once == 20
    assert sum(len(row["windows"]) for row in read_json_lines(run / "draws.jsonl")) == 80


def test_the_default_engine_is_torchtitans() -> None:
    import inspect

    assert inspect.signature(worker.main).parameters["engine"].default is worker.torchtitan
    assert issubclass(CheckpointError, PwwError)
