"""Muon against torch's own, against the singular values, and who is given to it."""

import pytest
import torch
from tiny import tiny_config
from torch import nn

from pww.config.schema import Config, Muon
from pww.trainer.muon import ShardedMuon, orthogonal
from pww.trainer.titan_optim import Optimizers, matrices, optimizers


def weights(seed: int) -> list[nn.Parameter]:
    random = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(s, generator=random)) for s in ((7, 3), (3, 7), (5, 5))]


def test_it_takes_the_steps_of_torchs_muon() -> None:
    ours, theirs = weights(1), weights(1)
    one = ShardedMuon(ours, lr=0.02, weight_decay=0.1, momentum=0.95, iterations=5)
    two = torch.optim.Muon(
        theirs, lr=0.02, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    for step in range(4):
        for a, b, grad in zip(ours, theirs, weights(10 + step), strict=True):
            a.grad, b.grad = grad.detach().clone(), grad.detach().clone()
        one.step()
        two.step()
        for a, b in zip(ours, theirs, strict=True):
            assert float((a - b).detach().abs().max()) < 1e-6


@pytest.mark.parametrize("shape", [(8, 8), (30, 6), (6, 30)])
def test_a_step_has_singular_values_near_one_and_the_same_directions(
    shape: tuple[int, int],
) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    matrix = u @ torch.diag(s.clamp(min=0.1 * float(s.max()))) @ v
    got = orthogonal(matrix, iterations=5).float()
    values = torch.linalg.svdvals(got)
    assert float(values.min()) > 0.6
    assert float(values.max()) < 1.3
    turned = u.T @ got @ v.T
    assert float((turned - torch.diag(turned.diagonal())).abs().max()) < 0.05  # bf16


def test_nothing_moves_without_a_gradient_and_zero_stays_zero() -> None:
    moved, still = weights(1)[:2]
    before = still.detach().clone()
    moved.grad = torch.zeros_like(moved)
    optimizer = ShardedMuon([moved, still], lr=0.5, weight_decay=0.0)
    start = moved.detach().clone()
    optimizer.step()
    assert torch.equal(moved, start)
    assert torch.equal(still, before)
    assert list(optimizer.state) == [moved]


class Model(nn.Module):
    """Names like those of our models."""

    def __init__(self) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(11, 4)
        self.layers = nn.ModuleDict({"0": nn.Linear(4, 5), "1": nn.LayerNorm(5)})
        self.lm_head = nn.Linear(5, 11, bias=False)


def test_muon_gets_the_matrices_of_the_layers_and_adamw_the_rest() -> None:
    model = Model()
    assert matrices(model) == ["layers.0.weight"]
    tree = tiny_config({"optim.lr": 0.5}).model_dump()
    tree["optim"] |= {"name": "muon", "momentum": 0.9, "newton_schulz": 4}
    optim = Config.model_validate(tree).optim
    assert isinstance(optim, Muon)
    config: Optimizers.Config = optimizers(optim)
    muon, adamw = config.build(model_parts=[model])
    assert isinstance(muon, ShardedMuon)
    assert muon.param_groups[0]["param_names"] == ["layers.0.weight"]
    assert (muon.param_groups[0]["momentum"], muon.param_groups[0]["iterations"]) == (0.9, 4)
    assert isinstance(adamw, torch.optim.AdamW)
    assert adamw.param_groups[0]["param_names"] == [
        "tok_embeddings.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias",
        "lm_head.weight",
    ]  # fmt: skip
    (only,) = optimizers(tiny_config().optim).build(model_parts=[model])
    assert isinstance(only, torch.optim.AdamW)
