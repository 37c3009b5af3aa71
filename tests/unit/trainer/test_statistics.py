"""Running statistics estimated anew: plain means over batches, and afterwards as they were."""

import pytest
import torch
from torch import nn

from pww.trainer.statistics import are_finite, recalibrated


class One:
    """A replica of one rank."""

    group, rank, world = None, 0, 1

    def most(self, number: int) -> int:
        return number


def test_plain_means_inside_and_nothing_changed_after() -> None:
    made = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).eval()
    norm = model[1]
    norm.train()(torch.randn(8, 4, generator=made) + 5)
    norm.eval()
    before = [buffer.clone() for buffer in model.buffers()]
    batches = [torch.randn(6, 3, generator=made) for _ in range(5)]
    with recalibrated(model, batches, ranks=One()):  # type: ignore[arg-type]
        assert not any(p.grad is not None for p in model.parameters())
        outs = [model[0](batch).detach().double() for batch in batches]
        means = torch.stack([out.mean(0) for out in outs]).mean(0)
        spread = torch.stack([out.var(0) for out in outs]).mean(0)
        assert torch.allclose(norm.running_mean.double(), means, atol=1e-6)
        assert torch.allclose(norm.running_var.double(), spread, atol=1e-6)
    assert norm.momentum == 0.1
    assert not model.training
    for buffer, was in zip(model.buffers(), before, strict=True):
        assert torch.equal(buffer, was)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 3e38, -3e38])
@pytest.mark.parametrize("name", ["0.weight", "1.weight", "1.running_var"])
def test_one_value_that_is_no_number_is_seen(name: str, value: float) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    model.register_parameter("empty", nn.Parameter(torch.empty(0, 3)))
    assert are_finite(model, ranks=One())  # type: ignore[arg-type]
    with torch.no_grad():
        model.state_dict()[name].view(-1)[-1] = value
    found = are_finite(model, ranks=One())  # type: ignore[arg-type]
    assert found == (abs(value) == 3e38)
