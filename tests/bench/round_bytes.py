"""Bytes that a site moves in a round of Qwen3 0.6B: payloads written for real, of random deltas.

The shapes are torchtitan's model on the meta device, with the vocabulary of the specification
(131,328 rows and an output layer of its own: 709,427,200 parameters).
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from figures import figure

from pww.codec import codec_named
from pww.config.load import compose
from pww.trainer import titan_cpu
from pww.transport.payload import write_payload

VOCAB = 131_328
WAYS = {"fp32": "fp32", "bf16": "bf16", "int8": "int8", "int4": "int4", "topk64": "topk-64-b2"}
GB = 1e9


def shapes() -> dict[str, tuple[int, ...]]:
    """Parameter names and shapes."""
    titan_cpu.install("cpu")
    from pww.trainer.titan_model import model_spec

    model = compose(["model=qwen3_0.6b", "model.tie_embeddings=false"]).model
    with torch.device("meta"):
        built = model_spec(model, padded_vocab=VOCAB, gloo=True).model.build()
    return {name: tuple(p.shape) for name, p in built.named_parameters()}


def deltas(layout: dict[str, tuple[int, ...]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Random deltas: pieces of one tensor, which is what takes time."""
    largest = max(torch.Size(shape).numel() for shape in layout.values())
    noise = torch.randn(largest, generator=torch.Generator().manual_seed(1)) * 1e-3
    for name, shape in layout.items():
        yield name, noise[: torch.Size(shape).numel()].reshape(shape)


def round_figures(folder: Path) -> None:
    """Prints `round_gb_0.6b_*`."""
    layout = shapes()
    count = sum(torch.Size(shape).numel() for shape in layout.values())
    what = f"GB up and down a site and round, {count:,} parameters, same codec both ways"
    figure("round_gb_0.6b_fp16_whole", 3 * 2 * count / GB,
           "GB, three fp16 copies of the weights a round: what it replaces", "4.2")  # fmt: skip
    for name, codec in WAYS.items():
        path = folder / "payload"
        info = write_payload(path, deltas(layout), layout, codec_named(codec))
        assert path.stat().st_size == info.size_bytes
        path.unlink()
        goal = "<= 0.75" if name == "int4" else "no goal"
        figure(f"round_gb_0.6b_{name}", 2 * info.size_bytes / GB, what, goal)
