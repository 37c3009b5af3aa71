"""The lab's task model against the trainer of a run: the same theta(0), the same loss."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tiny import SEQ_LEN, TinyCorpus

from pww.config.prepare import LAB, prepare
from pww.config.schema.lab import LabConfig
from pww.lab.model_network import ModelNetwork
from pww.lab.stack import Stack, flat
from pww.trainer.titan import TitanTrainer

SIZES = {
    "dim": 32, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "hidden_dim": 48,
    "seq_len": SEQ_LEN, "vocab_multiple": 256,
}  # fmt: skip


def network(*words: str) -> ModelNetwork:
    sizes = [f"model.{name}={value}" for name, value in SIZES.items()]
    made = prepare(["task=model", "seed=7", *sizes, *words], shape=LAB).configs[0]
    assert isinstance(made, LabConfig)
    assert made.model is not None
    return ModelNetwork(made, made.model)


@pytest.mark.parametrize(
    ("family", "tied", "dtype"),
    [("qwen3", True, "fp32"), ("qwen3", False, "bf16"), ("llama3", True, "fp32")],
)
def test_theta_and_loss_are_those_of_a_run(
    build: Callable[..., TitanTrainer], family: str, tied: bool, dtype: str
) -> None:
    over: dict[str, Any] = {
        "model.family": family, "model.tie_embeddings": tied, "model.dtype": dtype,
    }  # fmt: skip
    trainer = build(over)
    made = network(
        f"model={family}_debug", f"model.tie_embeddings={str(tied).lower()}",
        f"model.dtype={dtype}",
    )  # fmt: skip
    theirs = {name: whole.clone() for name, whole in trainer.tensors()}
    ours = made.initial()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    stack = Stack(made.shapes, workers=1)
    stack.load(flat(ours))
    corpus = TinyCorpus()
    windows = corpus.held_out(range(corpus.manifest.num_held_out))
    tokens = torch.from_numpy(np.ascontiguousarray(windows))[None]
    with torch.no_grad():
        loss = float(made.losses(stack.params, tokens))
    assert loss == pytest.approx(trainer.evaluate().loss, rel=1e-6 if dtype == "fp32" else 1e-4)
