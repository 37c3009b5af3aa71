"""Two sites against plain data parallelism on the same tokens: `python tests/bench/federated.py`.

    seeds=N    theta(0), order of the data and drawing from it (default 3)
    windows=N  of the corpus (default 8192, 257 tokens each)
    steps=N    inner steps of a phase (default 50)
    batch=N    windows of a site's step; one parallel step has twice as many (default 8)
    model=WORDS  overrides, comma-separated (default: a Qwen3 of 10 M parameters, in bf16 with fp32
               masters)
    outer=WORDS  overrides of the two sites' outer optimiser, comma-separated (default: as it is)
    keep=FILE  results as JSON lines: what is there with these settings is not trained again, what
               is trained is added, so that seeds add up over several calls (default: none)

Novels and WikiText where they are, else Python's documentation. Both arms take the same number of
steps, on the same two cores, from the same theta(0): "parallel" is one replica whose outer step
takes its weights as they are, "two_sites" are two `pww.train` and a `pww.central`. The corpus is
made once, before the first seed; an arm's seconds include the start of its processes.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
from figures import figure, machine

from pww.log import JsonLines, read_json_lines

ROOT = Path(__file__).resolve().parents[2]
MODEL = (
    "model.dim=384,model.num_layers=5,model.num_heads=6,model.num_kv_heads=3,model.head_dim=64,"
    "model.hidden_dim=1024,model.seq_len=256,model.dtype=bf16,optim.lr=1e-3,"
    "data.tokenizer.vocab_size=4096"
)
DEFAULTS = {"seeds": "3", "windows": "8192", "steps": "50", "batch": "8", "model": MODEL,
            "outer": ""}  # fmt: skip


@dataclass(frozen=True)
class Result:
    """What one arm came to with one seed."""

    first: float  # held-out loss before
    last: float  # and after
    tokens: int
    seconds: float


class Kept:
    """Results, in a file that a call which is cut off leaves whole lines in."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def get(self, arm: str, seed: int, settings: Mapping[str, object]) -> Result | None:
        """The result that is there, if its settings are these."""
        for row in [] if self._path is None else read_json_lines(self._path):
            if (row.get("arm"), row.get("seed"), row.get("settings")) == (arm, seed, settings):
                return Result(**row["result"])  # type: ignore[arg-type]
        return None

    def add(self, arm: str, seed: int, settings: Mapping[str, object], result: Result) -> None:
        """Durable when it returns."""
        if self._path is None:
            return
        lines = JsonLines(self._path)
        row = {"arm": arm, "seed": seed, "settings": settings, "result": asdict(result)}
        lines.write(row, durable=True)
        lines.close()


def corpus() -> list[str]:
    """Overrides: the text that is here."""
    for root in ("data", "../shared/data"):
        if (ROOT / root / "text/gutenberg").is_dir():
            files = "[text/gutenberg/*.txt,text/wikitext2/*.txt]"
            return ["data=gutenberg", "data.name=novels-wikitext", f"data.files={files}"]
    return ["data=pydocs"]


def run(words: list[str]) -> str:
    """What a program of ours printed; the bench ends if it failed."""
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(words)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def two_sites(common: list[str], batch: int, name: str) -> tuple[float, float, int]:
    """Held-out loss before and after, and the tokens."""
    words = [  # a merge waits for both, and nobody is gone because the machine was stopped a while
        "pww.demo",
        "sites=2",
        "diloco.quorum=1",
        "diloco.grace=600",
        "darl.detect_s=3600",
        "darl.ttl_floor_s=7200",
    ]
    out = run([*words, *common, f"run.root=outputs/{name}", f"optim.batch_windows={batch}"])
    told = json.loads(out.splitlines()[-1])
    return float(told["held_out_first"]), float(told["held_out_last"]), trained(name)


def parallel(common: list[str], batch: int, name: str) -> tuple[float, float, int]:
    """Held-out loss before and after, and the tokens."""
    run([
        "pww.train", *common, f"run.root=outputs/{name}", "run.name=alone",
        "site.cores_per_rank=2", f"optim.batch_windows={2 * batch}",
        "diloco.outer.optimizer=sgd", "diloco.outer.lr=1.0", "diloco.outer.momentum=0.0",
        f"darl.block_windows={2 * batch}",
    ])  # fmt: skip
    rows = read_json_lines(ROOT / "outputs" / name / "alone" / "metrics.jsonl")
    losses = [float(str(row["loss"])) for row in rows if row["split"] == "eval"]
    return losses[0], losses[-1], trained(name)


def trained(name: str) -> int:
    """Tokens of every replica below this root, merged or not."""
    total = 0
    for file in (ROOT / "outputs" / name).glob("*/metrics.jsonl"):
        rows = [row for row in read_json_lines(file) if row["split"] == "train"]
        total += max((int(str(row["tokens"])) for row in rows), default=0)
    return total


ARMS = {"parallel": parallel, "two_sites": two_sites}


def measure(arm: str, common: Sequence[str], *, seed: int, steps: str, batch: int) -> Result:
    """Trains one arm with one seed."""
    name = f"bench-{arm}-{seed}-{int(np.random.rand() * 1e9)}"
    words = [
        *common, f"seed={seed}", f"darl.seed={seed}", f"diloco.inner_steps={steps}",
        f"evaluation.every_rounds={max(1, 32 // int(steps))}", "evaluation.max_windows=128",
        "metrics.wandb.mode=disabled",
    ]  # fmt: skip
    start = perf_counter()
    first, last, tokens = ARMS[arm](words, batch, name)
    return Result(first, last, tokens, round(perf_counter() - start, 1))


def main(words: list[str]) -> None:
    """Runs both arms seed by seed, prints the losses and how much more the two sites have."""
    given = dict(word.partition("=")[::2] for word in words)
    if unknown := sorted(set(given) - {*DEFAULTS, "keep"}):
        sys.exit(f"unknown words {unknown}: there are {sorted({*DEFAULTS, 'keep'})}")
    keep = Path(given.pop("keep")) if given.get("keep") else None
    asked = {**DEFAULTS, **given}
    print(json.dumps({"machine": machine(), **asked}), flush=True)
    common = [*corpus(), *asked["model"].split(","), f"data.max_windows={asked['windows']}"]
    run(["pww.data", "tokenize", *common])  # the seed is no part of a corpus: one for all
    outer = [word for word in asked["outer"].split(",") if word]
    kept = Kept(keep)
    losses: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for seed in range(int(asked["seeds"])):
        for arm in ARMS:
            own = [*common, *outer] if arm == "two_sites" else common
            settings: dict[str, object] = {"common": own, "batch": asked["batch"]}
            if arm == "two_sites":  # parallel has no H: its phases only say when it is evaluated
                settings["steps"] = asked["steps"]
            found = kept.get(arm, seed, settings)
            result = found or measure(
                arm, own, seed=seed, steps=asked["steps"], batch=int(asked["batch"])
            )
            if found is None:
                kept.add(arm, seed, settings, result)
            losses[arm].append(result.last)
            line = {"arm": arm, "seed": seed, **asdict(result), "kept": found is not None}
            print(json.dumps(line), flush=True)
    more = 100 * (np.array(losses["two_sites"]) / np.array(losses["parallel"]) - 1)
    for arm, last in losses.items():
        figure(f"held_out_{arm}", float(np.mean(last)), f"nats, mean of {len(last)}", "none")
    each = ", ".join(f"{x:.2f}" for x in more)
    figure("two_sites_vs_parallel", float(np.mean(more)), f"% more loss, seeds {each}", "near 0.7")


if __name__ == "__main__":
    main(sys.argv[1:])
