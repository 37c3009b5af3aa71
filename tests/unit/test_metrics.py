"""metrics.jsonl has everything, wandb a copy; no fault of wandb's or the disk's ends a run."""

import errno
import json
import logging
import math
import sys
import threading
import types
from pathlib import Path

import pytest

from pww.clock import SystemClock
from pww.log import read_json_lines
from pww.metrics import Metrics

CONFIG = {"seed": 7, "optim": {"lr": 0.5}}


def open_metrics(folder: Path, mode: str = "offline") -> Metrics:
    folder.mkdir(exist_ok=True)
    return Metrics(
        folder, project="pww", group="run", name="run-a", wandb_id="abcd1234", mode=mode,
        config=CONFIG,
    )  # fmt: skip


def write_three(metrics: Metrics) -> None:
    metrics.row("train", step=1, round=0, tokens=8, loss=2.5, lr=0.1)
    metrics.row("eval", step=1, round=0, tokens=8, loss=2.25, state_hash="ab")
    metrics.row("outer", step=1, round=1, tokens=8, loss=2.5, merged=["a"], finite=True)


ROWS = [
    {"split": "train", "step": 1, "round": 0, "tokens": 8, "loss": 2.5, "lr": 0.1},
    {"split": "eval", "step": 1, "round": 0, "tokens": 8, "loss": 2.25, "state_hash": "ab"},
    {"split": "outer", "step": 1, "round": 1, "tokens": 8, "loss": 2.5, "merged": ["a"],
     "finite": True},
]  # fmt: skip


class Run:
    """A wandb run that fails at one call."""

    def __init__(self, fails: str) -> None:
        self.fails, self.calls, self.rows = fails, [], []

    def call(self, name: str) -> None:
        self.calls.append(name)
        if name == self.fails:
            raise ConnectionError("wandb is away")

    def define_metric(self, *_: object, **__: object) -> None:
        self.call("define_metric")

    def log(self, row: dict[str, object]) -> None:
        self.call("log")
        self.rows.append(row)

    def finish(self) -> None:
        self.call("finish")


@pytest.fixture
def wandb(monkeypatch):
    """Puts a wandb in place that fails at the named call; → (told, run)."""

    def put(fails: str) -> tuple[dict, Run]:
        run, told = Run(fails), {}

        def init(**settings: object) -> Run:
            told.update(settings)
            run.call("init")
            return run

        module = types.ModuleType("wandb")
        module.init = init
        module.Settings = lambda **settings: settings
        monkeypatch.setitem(sys.modules, "wandb", module)
        return told, run

    return put


# ------------------------------------------------------------------------------ metrics.jsonl


def test_rows_are_there_at_once_and_survive_a_second_start(tmp_path: Path) -> None:
    metrics = open_metrics(tmp_path, "disabled")
    write_three(metrics)
    assert read_json_lines(tmp_path / "metrics.jsonl") == ROWS
    metrics.close()
    metrics.close()
    again = open_metrics(tmp_path, "disabled")
    again.row("train", step=2, round=1, tokens=16, loss=math.nan)
    again.close()
    rows = read_json_lines(tmp_path / "metrics.jsonl")
    assert rows[:3] == ROWS
    assert math.isnan(rows[3]["loss"])


def test_disabled_means_that_wandb_is_not_even_imported(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # importing it would raise
    metrics = open_metrics(tmp_path, "disabled")
    write_three(metrics)
    metrics.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl"]


def test_a_full_disk_costs_rows_and_not_the_run(tmp_path: Path, caplog) -> None:
    metrics = open_metrics(tmp_path, "disabled")
    write_three(metrics)
    write = metrics._lines.write

    def full(row: dict[str, object], **_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    metrics._lines.write = full
    for step in range(2, 5):
        metrics.row("train", step=step, round=1, tokens=16, loss=1.0)
    assert len(caplog.records) == 1, "one warning is enough"
    assert "metrics.jsonl" in caplog.text
    assert "No space left" in caplog.text
    metrics._lines.write = write
    metrics.row("train", step=5, round=1, tokens=16, loss=1.0)
    metrics.close()
    assert [row["step"] for row in read_json_lines(tmp_path / "metrics.jsonl")] == [1, 1, 1, 5]


# ------------------------------------------------------------------------------ wandb's faults


@pytest.mark.parametrize("fails", ["init", "define_metric", "log", "finish"])
def test_a_wandb_that_fails_warns_once_and_costs_no_row(tmp_path, wandb, caplog, fails) -> None:
    _, run = wandb(fails)
    metrics = open_metrics(tmp_path)
    write_three(metrics)
    write_three(metrics)
    metrics.close()
    metrics.close()
    assert read_json_lines(tmp_path / "metrics.jsonl") == ROWS * 2
    warnings = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "wandb" in warnings[0].getMessage()
    assert "wandb is away" in warnings[0].getMessage()
    assert run.calls.count("log") == {"log": 1, "finish": 6}.get(fails, 0)


def test_a_wandb_that_is_not_installed_is_a_warning(tmp_path, monkeypatch, caplog) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    metrics = open_metrics(tmp_path)
    write_three(metrics)
    metrics.close()
    assert read_json_lines(tmp_path / "metrics.jsonl") == ROWS
    assert "wandb could not start" in caplog.text


def test_wandb_gets_the_numbers_by_split_and_the_axes(tmp_path: Path, wandb) -> None:
    told, run = wandb("nothing")
    metrics = open_metrics(tmp_path)
    write_three(metrics)
    metrics.close()
    assert (told["project"], told["group"], told["name"], told["id"]) == (
        "pww", "run", "run-a", "abcd1234",
    )  # fmt: skip
    assert (told["mode"], told["dir"], told["config"]) == ("offline", str(tmp_path), CONFIG)
    assert told["resume"] is None
    assert run.rows[0] == {
        "train/step": 1, "train/round": 0, "train/tokens": 8, "train/loss": 2.5, "train/lr": 0.1,
        "step": 1, "round": 0, "tokens": 8,
    }  # fmt: skip
    assert "eval/state_hash" not in run.rows[1]
    assert "outer/finite" not in run.rows[2], "a flag is no number"
    assert run.calls[-1] == "finish"


def test_an_online_run_is_gone_on_with(tmp_path: Path, wandb) -> None:
    told, _ = wandb("nothing")
    open_metrics(tmp_path, "online").close()
    assert (told["mode"], told["resume"]) == ("online", "allow")


# -------------------------------------------------------------------------- the real wandb


def records(path: Path):
    """What a `.wandb` file holds: a header of seven bytes, then protobufs in LevelDB's log format.

    Source: github.com/google/leveldb, doc/log_format.md
    """
    from wandb.proto.wandb_internal_pb2 import Record

    data = path.read_bytes()
    assert data[:4] == b":W&B"
    at, whole = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # a block's rest holds no header
            at += 32768 - at % 32768
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # full, or the last of several
            record = Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


def test_the_real_wandb_keeps_rows_and_settings_offline(
    tmp_path: Path, monkeypatch, caplog
) -> None:
    """Takes seconds: wandb's own service starts and ends."""
    for name in ("WANDB_MODE", "WANDB_DIR", "WANDB_PROJECT", "WANDB_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    run = tmp_path / "run"
    metrics = open_metrics(run)
    write_three(metrics)
    metrics.row("train", step=2, round=1, tokens=16, loss=math.nan, text="x" * 40000)
    metrics.close()
    assert caplog.text == ""
    (file,) = run.glob("wandb/offline-run-*/*.wandb")
    clock, never = SystemClock(), threading.Event()
    deadline_s = clock.monotonic() + 60
    found: list = []
    while not (found and found[-1].HasField("exit")):  # wandb's own process writes to the end
        assert clock.monotonic() < deadline_s, found
        clock.wait(never, 0.05)
        found = list(records(file))
    (header,) = [record.run for record in found if record.HasField("run")]
    assert (header.run_id, header.project, header.run_group, header.display_name) == (
        "abcd1234", "pww", "run", "run-a",
    )  # fmt: skip
    settings = {item.key: json.loads(item.value_json) for item in header.config.update}
    assert {key: settings[key] for key in CONFIG} == CONFIG
    history = [
        {
            item.key or item.nested_key[0]: json.loads(item.value_json)
            for item in record.history.item
        }
        for record in found
        if record.HasField("history")
    ]
    assert [row["step"] for row in history] == [1, 1, 1, 2]
    assert history[0]["train/loss"] == 2.5
    assert history[1]["eval/loss"] == 2.25
    assert history[2]["round"] == 1
    assert math.isnan(float(history[3]["train/loss"]))
    assert read_json_lines(run / "metrics.jsonl")[:3] == ROWS
    assert {path.name for path in tmp_path.iterdir()} == {"run"}


def test_a_wandb_folder_that_cannot_be_made_costs_wandb_only(tmp_path, monkeypatch, caplog) -> None:
    monkeypatch.delenv("WANDB_DIR", raising=False)
    run = tmp_path / "run"
    run.mkdir()
    (run / "wandb").write_text("in the way")
    metrics = open_metrics(run)
    write_three(metrics)
    metrics.close()
    assert read_json_lines(run / "metrics.jsonl") == ROWS
    assert caplog.text.count("wandb could not start") == 1
