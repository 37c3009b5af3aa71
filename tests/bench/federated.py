"""Two sites against plain data parallelism on the same tokens: `python tests/bench/federated.py`.

    seeds=N    theta(0), order of the data and drawing from it (default 3)
    windows=N  of the corpus (default 8192, 257 tokens each)
    steps=N    inner steps of a phase (default 50)
    batch=N    windows of a site's step; one parallel step has twice as many (default 8)
    model=WORDS  overrides, comma-separated (default: a Qwen3 of 10 M parameters)

Novels and WikiText where they are, else Python's documentation. Both arms take the same number of
steps, on the same two cores, from the same theta(0): "parallel" is one replica whose outer step
takes its weights as they are, "two_sites" are two `pww.train` and a `pww.central`.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from figures import figure, machine

ROOT = Path(__file__).resolve().parents[2]
MODEL = (
    "model.dim=256,model.num_layers=10,model.num_heads=8,model.num_kv_heads=4,model.head_dim=32,"
    "model.hidden_dim=768,model.seq_len=256,optim.lr=1e-3,data.tokenizer.vocab_size=8192"
)
DEFAULTS = {"seeds": "3", "windows": "8192", "steps": "50", "batch": "8", "model": MODEL}


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


def two_sites(common: list[str], batch: int, name: str) -> tuple[float, float]:
    """Held-out loss before and after."""
    words = [
        "pww.demo",
        "sites=2",
        "diloco.quorum=1",
        "diloco.grace=10",
        "darl.detect_s=60",
        "darl.ttl_floor_s=120",
    ]
    told = json.loads(run([*words, *common, f"optim.batch_windows={batch}"]).splitlines()[-1])
    return float(told["held_out_first"]), float(told["held_out_last"])


def parallel(common: list[str], batch: int, name: str) -> tuple[float, float]:
    """Held-out loss before and after."""
    run([
        "pww.train", *common, f"run.name={name}", "site.cores_per_rank=2",
        f"optim.batch_windows={2 * batch}", "diloco.outer.optimizer=sgd", "diloco.outer.lr=1.0",
        "diloco.outer.momentum=0.0", f"darl.block_windows={2 * batch}",
    ])  # fmt: skip
    rows = [
        json.loads(line)
        for line in (ROOT / "outputs" / name / "metrics.jsonl").read_text().splitlines()
    ]
    losses = [float(row["loss"]) for row in rows if row["split"] == "eval"]
    return losses[0], losses[-1]


ARMS = {"parallel": parallel, "two_sites": two_sites}


def main(words: list[str]) -> None:
    """Runs both arms seed by seed, prints the losses and how much more the two sites have."""
    given = dict(word.partition("=")[::2] for word in words)
    if unknown := sorted(set(given) - set(DEFAULTS)):
        sys.exit(f"unknown words {unknown}: there are {sorted(DEFAULTS)}")
    asked = {**DEFAULTS, **given}
    batch = int(asked["batch"])
    print(json.dumps({"machine": machine(), **asked}), flush=True)
    losses: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for seed in range(int(asked["seeds"])):
        common = [
            *corpus(), *asked["model"].split(","), f"data.max_windows={asked['windows']}",
            f"seed={seed}", f"darl.seed={seed}", f"diloco.inner_steps={asked['steps']}",
            "evaluation.max_windows=128", "metrics.wandb.mode=disabled",
        ]  # fmt: skip
        for arm, loss in ARMS.items():
            first, last = loss(common, batch, f"bench-{arm}-{seed}-{int(np.random.rand() * 1e9)}")
            losses[arm].append(last)
            print(json.dumps({"arm": arm, "seed": seed, "first": first, "last": last}), flush=True)
    more = 100 * (np.array(losses["two_sites"]) / np.array(losses["parallel"]) - 1)
    for arm, found in losses.items():
        figure(f"held_out_{arm}", float(np.mean(found)), f"nats, mean of {len(found)}", "none")
    each = ", ".join(f"{x:.2f}" for x in more)
    figure("two_sites_vs_parallel", float(np.mean(more)), f"% more loss, seeds {each}", "near 0.7")


if __name__ == "__main__":
    main(sys.argv[1:])
