"""What a sharded replica sends does not depend on its ranks: one, two and three write one file."""

import json
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from pww.codec import codec_named
from pww.transport.payload import PayloadReader, write_payload, write_theta

PROJECT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "programs" / "payload_ranks.py"
CODECS = ("fp32", "int4", "topk-64-b2")
LAYER = {
    "attention.qkv_linear.wq": (32, 32), "attention.qkv_linear.wk": (16, 32),
    "attention.qkv_linear.wv": (16, 32), "attention.wo": (32, 32), "attention.q_norm": (8,),
    "attention.k_norm": (8,), "feed_forward.w1": (48, 32), "feed_forward.w2": (32, 48),
    "feed_forward.w3": (48, 32), "attention_norm": (32,), "ffn_norm": (32,),
}  # fmt: skip
SHAPES: dict[str, tuple[int, ...]] = {
    "tok_embeddings.weight": (256, 32),
    **{f"layers.{i}.{name}.weight": shape for i in range(2) for name, shape in LAYER.items()},
    "norm.weight": (32,),
}


def launch(folder: Path) -> list[dict[str, list[list[str]]]]:
    """Digests of payload and residual, by codec and phase, of one, two and three ranks."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder), *CODECS],
        env=os.environ | {"PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((folder / f"rows{ranks}.json").read_text()) for ranks in (1, 2, 3)]


def states() -> list[dict[str, torch.Tensor]]:
    """theta_outer and theta_inner of two phases."""
    draws = torch.Generator().manual_seed(5)
    theta = {name: torch.randn(shape, generator=draws) for name, shape in SHAPES.items()}
    moved = [
        {n: t + 1e-3 * torch.randn(t.shape, generator=draws) for n, t in theta.items()}
        for _ in range(2)
    ]
    return [theta, *moved]


def by_hand(folder: Path, name: str, theta: Any, phases: Any) -> list[list[str]]:
    """The same files from whole tensors: v = delta + e, and what decoding leaves of v is e."""
    codec = codec_named(name)
    left = {n: torch.zeros_like(t) for n, t in theta.items()}
    rows = []
    for number, inner in enumerate(phases):
        due = {n: (theta[n] - inner[n]) + left[n] for n in theta}
        path = folder / f"{name}-{number}.by_hand"
        info = write_payload(path, due.items(), SHAPES, codec, seed=f"s/a 0 {number}")
        with PayloadReader(path, info) as payload:
            left = {n: t - payload.tensor(n) for n, t in due.items()}
        write_theta(path.with_suffix(".left"), left.items(), SHAPES)
        residual = path.with_suffix(".left").read_bytes()
        rows.append([info.digest, sha256(residual).hexdigest()])
    return rows


def test_the_bytes_do_not_depend_on_the_number_of_ranks(tmp_path: Path) -> None:
    theta, *phases = states()
    for name, state in {"theta": theta, "inner0": phases[0], "inner1": phases[1]}.items():
        write_theta(tmp_path / f"{name}.safetensors", state.items(), SHAPES)
    expected = {name: by_hand(tmp_path, name, theta, phases) for name in CODECS}
    assert len({digest for rows in expected.values() for digest, _ in rows}) == 6
    assert launch(tmp_path) == [expected] * 3
