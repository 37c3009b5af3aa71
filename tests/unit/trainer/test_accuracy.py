"""Accuracy is measured with running statistics, and leaves no trace in them."""

import pytest
import torch
from torch import nn

from pww.trainer.accuracy import score


class One:
    """A replica of one rank."""

    group, rank, world = None, 0, 1


@pytest.mark.parametrize("training", [True, False])
def test_a_network_is_measured_as_it_is(training: bool) -> None:
    made = torch.Generator().manual_seed(4)
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4), nn.Linear(4, 3))
    model[1].running_mean.copy_(torch.randn(4, generator=made))
    model.train(training)
    pixels = torch.randint(0, 256, (11, 1, 2, 2), dtype=torch.uint8, generator=made)
    labels = torch.randint(0, 3, (11,), dtype=torch.uint8, generator=made)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = score(
        model, pixels, labels, batch=4, ranks=One(), prepare=lambda p: p / 64  # type: ignore[arg-type]
    )  # fmt: skip
    x = (pixels.flatten(1) / 64 - before["1.running_mean"]) / (1 + 1e-5) ** 0.5
    logits = model[2](x).detach()
    assert (found.right, found.count) == (int((logits.argmax(1) == labels).sum()), 11)
    expected = nn.functional.cross_entropy(logits, labels.long())
    assert found.loss == pytest.approx(float(expected), rel=1e-5)
    assert model.training is training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
