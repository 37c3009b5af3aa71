"""`python -m pww.train` with torchtitan, as processes: the loss falls, stops and faults lose
nothing.
"""

import json
import resource
import signal
import time
from collections import Counter
from pathlib import Path

from conftest import Child, Project

from pww.central.audit import audit, merged_deltas
from pww.log import read_json_lines

SMALL = (
    "data.max_windows=640", "diloco.inner_steps=20", "evaluation.max_windows=32",
    "metrics.every_steps=5", "metrics.wandb.mode=disabled",
)  # fmt: skip


def rows(run: Path, split: str) -> list[dict[str, float]]:
    return [r for r in read_json_lines(run / "metrics.jsonl") if r["split"] == split]  # type: ignore[misc]


def check_exactly_once(run: Path) -> None:
    books = audit(run)
    assert books.ok
    assert books.exactly_once == books.blocks > 0
    space, merged = merged_deltas(run)
    drawn: Counter[int] = Counter()
    for row in read_json_lines(run / "draws.jsonl"):
        if row["delta"] in merged:
            drawn.update(row["windows"])  # type: ignore[call-overload]
    assert drawn == Counter(range(space.num_windows))


def worker_of(child: Child) -> int:
    """Process id of the rank that `pww.train` started."""
    children = Path(f"/proc/{child.process.pid}/task/{child.process.pid}/children")
    child.until(lambda: children.read_text().split())
    return int(children.read_text().split()[0])


def test_a_run_from_start_to_end_with_wandb_offline(project: Project) -> None:
    done = project.run(
        "-m", "pww.train", *SMALL[:-1], "run.name=whole", "data.max_windows=1280"
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    run = project.outputs / "whole"
    check_exactly_once(run)
    train, held_out, outer = (rows(run, split) for split in ("train", "eval", "outer"))
    assert [r["round"] for r in held_out] == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert held_out[-1]["loss"] < held_out[0]["loss"] - 0.5
    assert [r["step"] for r in train] == list(range(5, 161, 5))
    assert train[-1]["tokens"] == outer[-1]["tokens"] == 1280 * 64
    assert all({"split", "step", "round", "tokens", "loss"} <= r.keys() for r in train)
    assert all(r["agreement"] == 1 for r in outer)  # one replica agrees with itself
    assert "held-out loss" in done.stdout
    assert "whole" in done.stdout
    assert "Traceback" not in done.stderr
    assert (run / "finished").exists()
    assert len(list((run / "checkpoints").iterdir())) == 2
    names, history = _wandb(run)
    assert {"train/loss", "eval/loss", "outer/loss"} <= names
    assert history == len(train) + len(held_out) + len(outer)


def _wandb(run: Path) -> tuple[set[str], int]:
    """Keys and number of history rows of the offline wandb run.

    The file is LevelDB's log format: a 7-byte head, then blocks of 32 KiB with records of
    (crc 4, length 2, type 1, data); a type of 2, 3, 4 is the first, a middle, the last part.
    """
    from wandb.proto import wandb_internal_pb2

    (path,) = run.glob("wandb/offline-run-*/*.wandb")
    data, at, whole = path.read_bytes(), 7, b""
    names: set[str] = set()
    count = 0
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            whole = b""
            if record.WhichOneof("record_type") == "history":
                count += 1
                names |= {i.key or "/".join(i.nested_key) for i in record.history.item}
    return names, count


def test_ctrl_c_in_the_middle_of_a_phase_and_on_again(project: Project) -> None:
    run = project.outputs / "stopped"
    child = project.start("-m", "pww.train", *SMALL, "run.name=stopped", name="stopped")
    child.until(lambda: (t := rows(run, "train")) and t[-1]["round"] == 1)
    start = time.monotonic()
    child.signal(signal.SIGINT)
    assert child.wait(30) == 130
    assert time.monotonic() - start < 5
    assert "resume=" in child.text()
    assert "Traceback" not in child.text()
    steps = json.loads((run / "checkpoints/phase-000000/entry.json").read_text())["step"]
    assert steps == 20
    again = project.start("-m", "pww.train", "resume=auto", *SMALL, name="stopped")
    assert again.wait() == 0
    check_exactly_once(run)
    assert [row["step"] for row in rows(run, "train")] == list(range(5, 81, 5)), "each once"
    assert rows(run, "outer")[-1]["step"] == 80
    assert rows(run, "outer")[-1]["tokens"] == 640 * 64
    refused = project.run("-m", "pww.train", "resume=outputs/stopped")
    assert refused.returncode == 2
    assert "finished" in refused.stderr


def theta_of(run: Path) -> str:
    """The last theta's hash."""
    last = max((run / "central" / "generations").glob("round-??????"))
    return str(json.loads((last / "generation.json").read_text())["state_hash"])


def told(run: Path, split: str, *columns: str) -> dict[float, list[object]]:
    """The last row of each step or round, without what a clock says: a phase may be done twice."""
    key = "step" if split == "train" else "round"
    return {row[key]: [row[name] for name in columns] for row in rows(run, split)}


def test_kill_resume_kill_resume_is_the_uninterrupted_run(project: Project) -> None:
    """SIGKILL in the middle of a phase, then where a checkpoint is written."""
    options = [*SMALL[:-1], "metrics.wandb.mode=offline"]
    whole = project.start("-m", "pww.train", *options, "run.name=calm", name="calm")
    run = project.outputs / "killed"
    child = project.start("-m", "pww.train", *options, "run.name=killed", name="killed")
    child.until(lambda: (t := rows(run, "train")) and t[-1]["round"] == 1)
    child.kill()
    wandb_id = (run / "wandb_id").read_text()
    before = rows(run, "train")
    again = project.start("-m", "pww.train", "resume=outputs/killed", name="killed")
    # at the first sight of it: whichever file is being written then
    again.until(lambda: list((run / "checkpoints").glob("phase-000002*")))
    again.kill()
    last = project.start("-m", "pww.train", "resume=auto", *options, name="killed")
    assert last.wait() == 0
    assert whole.wait() == 0
    check_exactly_once(run)
    calm = project.outputs / "calm"
    assert theta_of(run) == theta_of(calm), "to the bit"
    columns = ("step", "round", "tokens", "loss")
    for split, more in (
        ("train", ("lr", "phase_step", "phase_steps")),
        ("eval", ("perplexity", "state_hash")),
        ("outer", ("outcome", "base_round", "delta_norm", "drift", "phase_tokens", "steps")),
    ):
        assert told(run, split, *columns, *more) == told(calm, split, *columns, *more), split
    for split, key in (("train", "step"), ("eval", "round"), ("outer", "round")):
        once = [row[key] for row in rows(calm, split)]
        assert [row[key] for row in rows(run, split)] == once, f"each {split} row once"
    known = [row for row in before if row["round"] == 0]
    assert rows(run, "train")[: len(known)] == known, "rows of what was done before a kill stay"
    assert (run / "wandb_id").read_text() == wandb_id
    offline = [path.name for path in (run / "wandb").glob("offline-run-*")]
    assert len(offline) == 3
    assert all(name.endswith(wandb_id) for name in offline), "one wandb run, three parts"


def test_sigterm_to_the_group_leaves_a_checkpoint_and_nobody(project: Project) -> None:
    """What a queue does at the end of the time, with two ranks: everything of the job hears it."""
    run = project.outputs / "term"
    child = project.start(
        "-m", "pww.train", *SMALL, "run.name=term", "parallel.ranks=2", name="term"
    )  # fmt: skip
    child.until(lambda: (t := rows(run, "train")) and t[-1]["round"] == 1)
    members = _with_children(child.process.pid)
    assert len(members) >= 4, "the command, the launcher and two ranks"
    child.signal(signal.SIGTERM)
    assert child.wait(30) == 130
    end = time.monotonic() + 10
    while any(map(_runs, members)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not [pid for pid in members if _runs(pid)], "all of them are gone"
    assert not list((run / "checkpoints").glob("*.part"))
    entry = json.loads((run / "checkpoints/phase-000000/entry.json").read_text())
    assert (entry["step"], entry["verdict"]["outcome"]) == (20, "merged")
    assert (run / "checkpoints/phase-000000/inner/inner.json").exists()


def _with_children(pid: int) -> list[int]:
    """A process and all that come from it."""
    try:
        tasks = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    return [
        pid,
        *(each for task in tasks for one in task.split() for each in _with_children(int(one))),
    ]


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_full_disk_ends_the_run_and_leaves_the_last_checkpoint(project: Project) -> None:
    run = project.outputs / "full"
    child = project.start("-m", "pww.train", *SMALL, "run.name=full", name="full")
    child.until(lambda: len(rows(run, "outer")) >= 1)
    # no file of more than 300 kB any more: the kernel's own answer to the next checkpoint
    worker = worker_of(child)
    resource.prlimit(worker, resource.RLIMIT_FSIZE, (300_000, 300_000))
    assert child.wait() == 1
    assert "Traceback" not in child.text()
    assert "resume=" in child.text()
    checkpoints = sorted(p.name for p in (run / "checkpoints").iterdir())
    assert checkpoints
    assert not any(name.endswith(".part") for name in checkpoints)
    again = project.start("-m", "pww.train", "resume=outputs/full", name="full")
    assert again.wait() == 0
    check_exactly_once(run)


def test_two_ranks_with_fsdp_train_the_same_windows(project: Project) -> None:
    done = project.run("-m", "pww.train", *SMALL, "run.name=two", "parallel.ranks=2")
    assert done.returncode == 0, done.stderr
    run = project.outputs / "two"
    check_exactly_once(run)
    held_out = rows(run, "eval")
    assert held_out[-1]["loss"] < held_out[0]["loss"]
    assert held_out[0]["held_out_tokens"] == 32 * 64
    assert "Traceback" not in done.stderr
