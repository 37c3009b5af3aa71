"""Held-out loss of two-site runs under each codec, same tokens, some seeds: `pww.demo` for real.

    python tests/bench/quality.py [codecs=fp32,int8,int4,fp32+averaging,topk+averaging] [seeds=3]
                                  [windows=2400] [steps=24]

Each run is two sites on this machine (torchtitan, a debug Qwen3, Tiny Shakespeare where it is, else
Python's documentation), waited for in every round, so that a seed differs by its codec only. The
way down is int8 for int8, and so on; theta whole for fp32. The outer step is the default one, or
averaging, which top-k wants; a codec is compared with fp32 under the same. One JSON line a codec.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from figures import figure, machine

from pww.config.check_codec import AVERAGING

DOWN = {"fp32": "whole", "int8": "int8", "int4": "int4", "topk": "int4"}
DEFAULTS = {
    "codecs": "fp32,int8,int4,fp32+averaging,topk+averaging", "seeds": "3", "windows": "2400",
    "steps": "24",
}  # fmt: skip
DATA = ("data", "../shared/data")


def held_out(arm: str, seed: int, *, windows: str, steps: str) -> tuple[float, float, int]:
    """The loss before and after one run, and its merges."""
    codec, _, outer = arm.partition("+")
    corpus = "tinyshakespeare" if any(
        Path(root, "tinyshakespeare/input.txt").exists() for root in DATA
    ) else "pydocs"  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "pww.demo", "sites=2", f"data={corpus}",
         f"data.max_windows={windows}", f"diloco.inner_steps={steps}",
         "diloco.quorum=1", "diloco.grace=10", "darl.detect_s=60", "darl.ttl_floor_s=120",
         f"seed={seed}",
         f"darl.seed={seed}", f"codec={codec}", f"transport.down={DOWN[codec]}",
         "metrics.wandb.mode=disabled", *(AVERAGING.split() if outer else ())],
        capture_output=True, text=True, check=False, timeout=1200,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"codec={arm} seed={seed} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    told = json.loads(done.stdout.splitlines()[-1])
    return float(told["held_out_first"]), float(told["held_out_last"]), int(told["merges"])


def main(words: list[str]) -> None:
    """Runs, prints the losses and each codec's distance from fp32, seed by seed."""
    given = dict(word.partition("=")[::2] for word in words)
    if unknown := sorted(set(given) - set(DEFAULTS)):
        sys.exit(f"unknown words {unknown}: there are {sorted(DEFAULTS)}")
    asked = {**DEFAULTS, **given}
    print(json.dumps({"machine": machine()}), flush=True)
    losses: dict[str, list[float]] = {}
    for seed in range(int(asked["seeds"])):
        for codec in asked["codecs"].split(","):
            first, last, merges = held_out(
                codec, seed, windows=asked["windows"], steps=asked["steps"]
            )
            losses.setdefault(codec, []).append(last)
            told = {"codec": codec, "seed": seed, "merges": merges}
            told |= {"first": round(first, 4), "last": round(last, 4)}
            print(json.dumps(told), flush=True)
    for codec, found in losses.items():
        figure(f"held_out_{codec}", float(np.mean(found)), f"nats, mean of {len(found)}", "none")
        kind, plus, outer = codec.partition("+")
        exact = losses.get(f"fp32{plus}{outer}")
        if kind == "fp32" or exact is None:
            continue
        more = 100 * (np.array(found) / np.array(exact) - 1)
        each = ", ".join(f"{x:.3f}" for x in more)
        figure(f"held_out_{codec}_vs_fp32", float(np.mean(more)), f"% more, seeds {each}", "none")


if __name__ == "__main__":
    main(sys.argv[1:])
