"""Figures of the codecs: `python tests/bench/codec.py [codec ...] [values=N] [tries=3]`.

Speed is bytes of fp32 input over the seconds of encoding and decoding together, best of the tries;
beside it CPU seconds for a GB, which a busy machine does not change so much. Values are Gaussian,
in one tensor of 100 million.
"""

import sys
from time import perf_counter, process_time

import torch
from figures import figure, machine

from pww.codec import codec_named

GOALS = {"int8": 1.0, "int4": 1.0, "topk-64-b2": 0.3}
OTHERS = (
    "bf16", "fp16", "int2", "sign", "topk-64-b4", "topk-256-b2", "randomk-64", "dct2-64",
)  # fmt: skip
BITS = {"int8": 8.01, "int4": 4.01, "topk-64-b2": 0.25, "topk-256-b2": 0.9, "bf16": 16}


def measure(name: str, tensor: torch.Tensor, *, tries: int) -> None:
    """Speed and size of one codec."""
    codec, shape = codec_named(name), tuple(tensor.shape)
    gigabytes = tensor.numel() * 4 / 1e9
    best, cpu = float("inf"), float("inf")
    for _ in range(tries):
        started, busy = perf_counter(), process_time()
        codec.decode(codec.encode(tensor), shape)
        best = min(best, perf_counter() - started)
        cpu = min(cpu, process_time() - busy)
    short = name.split("-")[0] if name in GOALS else name.replace("-", "_")
    goal = f">= {GOALS[name]}" if name in GOALS else "none"
    figure(f"{short}_gb_per_s", gigabytes / best, "GB/s", goal)
    figure(f"{short}_cpu_s_per_gb", cpu / gigabytes, "s/GB", "none")
    bits = 8 * codec.size_bytes(shape) / tensor.numel()
    figure(f"{short}_bits", bits, "bits/parameter", f"<= {BITS[name]}" if name in BITS else "none")


def main(words: list[str]) -> None:
    """Measures the codecs that `words` name, or all."""
    options = dict(word.split("=", 1) for word in words if "=" in word)
    names = [word for word in words if "=" not in word] or [*GOALS, *OTHERS]
    generator = torch.Generator().manual_seed(0)
    tensor = torch.randn(int(options.get("values", 100_000_000)), generator=generator)
    print(f"{machine()}, torch {torch.__version__}, {torch.get_num_threads()} threads", flush=True)
    for name in names:
        measure(name, tensor, tries=int(options.get("tries", 3)))


if __name__ == "__main__":
    main(sys.argv[1:])
