"""What a phase cost: the model's FLOPs by the formula that torchtitan counts with, and memory."""

import math
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "integration" / "programs"))

from tiny import SEQ_LEN, Never, Steps

from pww.trainer import memory

LAYERS, HEADS, HEAD_DIM = 2, 4, 8


@pytest.mark.parametrize("tied", [True, False])
def test_flops_are_six_a_parameter_and_those_of_attention(build, tied: bool) -> None:
    trainer = build({"model.tie_embeddings": tied})
    sizes = {name: math.prod(shape) for name, shape in trainer.shapes().items()}
    result = trainer.run(
        [1, 2, 3], progress=0.0, progress_end=0.1, on_step=Steps(), stop=Never()
    )  # fmt: skip
    # an embedding that is only looked up multiplies nothing; a tied one is the head
    multiplied = sum(sizes.values()) - (0 if tied else sizes["tok_embeddings.weight"])
    # scores and values: two products of head_dim each, 2 FLOPs, forward and twice backward
    attention = LAYERS * HEADS * (2 * HEAD_DIM) * SEQ_LEN * 2 * 3
    assert result.flops_per_token == 6 * multiplied + attention


def test_memory_is_the_process_on_a_cpu(build) -> None:
    trainer = build()
    result = trainer.run([1], progress=0.0, progress_end=0.1, on_step=Steps(), stop=Never())
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    assert resident // 2 < result.memory_bytes < 64 * 2**30


def test_memory_is_the_allocators_on_a_gpu(monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: asked.append(device))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 5 * 2**30)
    device = torch.device("cuda", 0)
    memory.forget_peak(device)
    assert (asked, memory.peak(device)) == ([device], 5 * 2**30)
    memory.forget_peak(torch.device("cpu"))
    assert asked == [device]
