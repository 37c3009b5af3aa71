"""Where an outer step puts the known parameter: worked out twice, and 0.5000 and 1.5000."""

import numpy as np
import pytest
import torch

from pww.config.schema.outer import Outer
from pww.outer import add_weighted_, get_optimizer, weights
from pww.smoke.replicas import expected, gain

OUTERS = [("nesterov", 0.7, 0.9), ("sgd", 1.0, 0.0), ("nesterov", 0.4, 0.0), ("sgd", 0.3, 0.0)]


def outer(optimizer: str, lr: float, momentum: float) -> Outer:
    return Outer(optimizer=optimizer, lr=lr, momentum=momentum, solo_full_step=False)


@pytest.mark.parametrize("how", OUTERS)
@pytest.mark.parametrize(("replicas", "half"), [(2, "0.5000"), (4, "1.5000"), (8, "3.5000")])
def test_the_known_place_is_the_mean_of_the_replicas_numbers(
    how: tuple[str, float, float], replicas: int, half: str
) -> None:
    assert f"{float(expected(outer(*how), replicas=replicas)):.4f}" == half


@pytest.mark.parametrize("how", OUTERS)
@pytest.mark.parametrize("replicas", [2, 3, 4, 7])
def test_its_bits_are_those_of_the_outer_step(how: tuple[str, float, float], replicas: int) -> None:
    made = outer(*how)
    theta, momentum = torch.zeros(5), torch.zeros(5)
    deltas = [torch.full((5,), -float(np.float32(r / gain(made)))) for r in range(replicas)]
    share = weights([1] * replicas, [0] * replicas, 0.25)
    mean = deltas[0] * share[0]
    for delta, weight in zip(deltas[1:], share[1:], strict=True):
        add_weighted_(mean, delta, weight)
    get_optimizer(made, contributors=replicas).step(theta, momentum, mean, partial=False)
    wanted = expected(made, replicas=replicas)
    assert theta.numpy().tobytes() == np.full(5, wanted, dtype=np.float32).tobytes()


def test_the_deltas_of_the_default_optimiser() -> None:
    """As the module says them."""
    g = gain(outer("nesterov", 0.7, 0.9))
    assert [round(-r / g, 4) for r in range(4)] == [0.0, -0.7519, -1.5038, -2.2556]
