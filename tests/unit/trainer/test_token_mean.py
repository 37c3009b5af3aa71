"""The loss is a mean over tokens: through loader, model, loss function and sums."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tiny import Never, Steps, TinyCorpus

from pww.trainer.titan import TitanTrainer

SEQ_LEN, PADDED = 10, 256
EASY, HARD = 3, 4  # token ids


class EasyAndHard(TinyCorpus):
    """Window 10 is made of HARD tokens, all others of EASY ones."""

    def windows(self, ids: Sequence[int]) -> "np.ndarray[Any, Any]":
        rows = [np.full(SEQ_LEN + 1, HARD if i == 10 else EASY) for i in ids]
        return np.stack(rows)


def knows_only_frequencies(trainer: TitanTrainer, path: Path) -> Path:
    """Theta whose logits are the same everywhere: EASY costs 1 nat, HARD 2."""
    theta = {n: torch.zeros(shape) for n, shape in trainer.shapes().items()}
    for name, tensor in theta.items():
        if name.endswith("norm.weight"):
            tensor.fill_(1.0)
    theta["tok_embeddings.weight"].fill_(1.0)
    rest = 1 - math.exp(-1) - math.exp(-2)
    logits = torch.full((PADDED,), math.log(rest / (PADDED - 2)))
    logits[EASY], logits[HARD] = -1.0, -2.0
    dim = theta["lm_head.weight"].shape[1]
    theta["lm_head.weight"] += (logits / dim)[:, None]
    save_file(theta, path)
    return path


@pytest.mark.parametrize(
    ("batch", "accumulate"), [(12, 1), (12, 2), (12, 4), (12, 12), (4, 1), (4, 4)]
)
def test_a_hundred_tokens_at_1_and_ten_at_2(
    build: Callable[..., TitanTrainer], tmp_path: Path, batch: int, accumulate: int
) -> None:
    """Eleven windows: the last step is padded, its part of HARD tokens another than before."""
    over = {
        "model.seq_len": SEQ_LEN, "model.tie_embeddings": False, "optim.batch_windows": batch,
        "optim.accumulate": accumulate, "metrics.every_steps": 100,
    }  # fmt: skip
    trainer = build(over, corpus=EasyAndHard(window_tokens=SEQ_LEN + 1))
    trainer.load(knows_only_frequencies(trainer, tmp_path / "theta.safetensors"))
    steps = Steps()
    # At progress 0 the rate is 0: nothing is learnt on the way
    result = trainer.run(
        list(range(11)), progress=0.0, progress_end=0.0, on_step=steps, stop=Never()
    )
    assert result.tokens == 110
    assert result.loss == pytest.approx((100 * 1.0 + 10 * 2.0) / 110, abs=1e-5)
    assert f"{result.loss:.4f}" == "1.0909"
    assert [row["loss"] for row in steps.rows] == pytest.approx([result.loss])
    # Not the mean over forward passes, nor over windows with the padding among them
    assert result.loss != pytest.approx((100 + 20) / 120, abs=1e-3)
