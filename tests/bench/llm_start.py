"""From `python -m pww.train` to its first step: a new run, and one that was killed and goes on.

The debug model, one rank, a corpus that is there. The first step is over when its row is in
metrics.jsonl. `python tests/bench/llm_start.py`.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figures import figure, machine

WORDS = (
    "parallel=single", "site.cores_per_rank=1", "metrics.every_steps=1",
    "metrics.wandb.mode=disabled", "diloco.inner_steps=4", "darl.block_windows=8",
    "evaluation.max_windows=8", "data.max_windows=4000",
)  # fmt: skip
LIMIT_S = 300.0
ENGINE = "from pww.trainer import titan_cpu; titan_cpu.install('cpu'); import torchtitan.trainer"


def start_s(disk: Path, *, rounds: int) -> None:
    """Prints both medians, and the time that the engine's own libraries take to load."""
    with tempfile.TemporaryDirectory(dir=disk) as name:
        folder = Path(name)
        words = [*WORDS, f"data.cache={folder}/cache", f"run.root={folder}"]
        subprocess.run(
            [sys.executable, "-m", "pww.data", "tokenize", *words], check=True, capture_output=True
        )
        starts, resumes, loads = [], [], []
        for number in range(rounds):
            run = folder / f"run-{number}"
            loads.append(_load_s())
            starts.append(_first_step_s([*words, f"run.name={run.name}"], run))
            resumes.append(_first_step_s([f"resume={run}"], run))
    print(json.dumps({"load_s": loads, "start_s": starts, "resume_s": resumes}), flush=True)
    figure("load_s", statistics.median(loads), "s to import torch and torchtitan's trainer", "-")
    figure("start_s", statistics.median(starts), "s from the command to the first step", "-")
    figure("resume_s", statistics.median(resumes), "s from the command to the next step", "-")


def _load_s() -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", ENGINE], check=True)
    return time.perf_counter() - begin


def _first_step_s(words: list[str], run: Path) -> float:
    """Starts a run and kills it in a later phase; the time until it told of its first step."""
    file = run / "metrics.jsonl"
    before = file.stat().st_mtime_ns if file.exists() else 0
    entries = sorted(run.glob("checkpoints/phase-??????/entry.json"))
    done = int(json.loads(entries[-1].read_bytes())["step"]) if entries else 0
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "pww.train", *words], stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        while not _trained(file, since=before, done=done):
            _check(process, begin)
            time.sleep(0.005)
        took = time.perf_counter() - begin
        while sorted(run.glob("checkpoints/phase-??????/entry.json"))[-1:] == entries[-1:]:
            _check(process, begin)
            time.sleep(0.005)
    finally:
        process.kill()  # its rank dies with it
        process.wait()
    return took


def _trained(file: Path, *, since: int, done: int) -> bool:
    """Whether the last row, written after `since`, is of a step that was not `done` before."""
    try:
        if file.stat().st_mtime_ns == since:
            return False
        row = json.loads(file.read_bytes().splitlines()[-1])
    except (FileNotFoundError, IndexError, ValueError):
        return False
    return row["split"] == "train" and row["step"] > done


def _check(process: "subprocess.Popen[str]", begin: float) -> None:
    if process.poll() is not None or time.perf_counter() - begin > LIMIT_S:
        sys.exit(f"the run ended with {process.returncode}: {process.stderr.read()}")


if __name__ == "__main__":
    print(json.dumps({"machine": machine()}), flush=True)
    start_s(Path(tempfile.gettempdir()), rounds=3)
