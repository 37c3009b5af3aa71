"""The stacked model: its sizes, its causality, and that M at once are M one by one."""

import math

import pytest
import torch

from pww.lab import charlm
from pww.lab.stack import Stack, flat, places
from pww.lab.text import VOCABULARY

TOY = charlm.SIZES["toy"]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def stacked(workers: int, size: charlm.Size = TOY) -> Stack:
    """Workers of different parameters."""
    stack = Stack(size.shapes, workers=workers)
    for worker in range(workers):
        row = flat(charlm.initial(size, generator=generator(worker)))
        stack.values[worker] = row * (1 + worker)
    return stack


def windows(workers: int, count: int = 3, size: charlm.Size = TOY) -> torch.Tensor:
    shape = (workers, count, size.context + 1)
    return torch.randint(len(VOCABULARY), shape, generator=generator(7))


@pytest.mark.parametrize(
    ("name", "parameters"), [("toy", 5_376), ("413k", 413_696), ("915k", 915_456)]
)
def test_sizes(name: str, parameters: int) -> None:
    size = charlm.SIZES[name]
    assert size.parameters == parameters
    assert flat(charlm.initial(size, generator=generator())).numel() == parameters


@pytest.mark.parametrize("name", ["toy", "413k"])
def test_batched_is_a_loop_over_workers(name: str) -> None:
    """Losses and gradients, to rounding: M batched products may add in another order than one."""
    size = charlm.SIZES[name]
    stack, tokens = stacked(4, size), windows(4, 2, size)
    losses = charlm.losses(stack.params, tokens, size=size)
    stack.backward(losses)
    for worker in range(4):
        alone = Stack(size.shapes, workers=1)
        alone.load(stack.values[worker])
        loss = charlm.losses(alone.params, tokens[worker : worker + 1], size=size)
        alone.backward(loss)
        assert loss.item() == pytest.approx(losses[worker].item(), rel=1e-6)
        scale = float(alone.grads.abs().max())
        assert float((alone.grads[0] - stack.grads[worker]).abs().max()) < 1e-5 * scale


def test_a_plain_network_of_torch_gives_the_same_loss_and_gradient() -> None:
    """Written with torch's own layers, from the description alone."""
    stack, tokens = stacked(1), windows(1)
    loss = charlm.losses(stack.params, tokens, size=TOY)
    stack.backward(loss)
    mine = {k: v[0].detach().clone().requires_grad_() for k, v in stack.params.items()}
    x = mine["embed"][tokens[0, :, :-1]] + mine["positions"]
    norm = torch.nn.LayerNorm(TOY.dim, elementwise_affine=False)
    h = norm(x)
    q, k, v = (
        (h @ mine[f"layers.0.{part}"]).unflatten(-1, (TOY.heads, -1)).transpose(1, 2)
        for part in ("query", "key", "value")
    )
    scores = q @ k.transpose(2, 3) / math.sqrt(TOY.dim / TOY.heads)
    later = torch.ones(TOY.context, TOY.context, dtype=torch.bool).triu(1)
    mixed = scores.masked_fill(later, -torch.inf).softmax(-1) @ v
    x = x + mixed.transpose(1, 2).flatten(2) @ mine["layers.0.out"]
    x = x + torch.relu(norm(x) @ mine["layers.0.up"]) @ mine["layers.0.down"]
    logits = norm(x) @ mine["embed"].T
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[0, :, 1:].flatten())
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for name, place in places(TOY.shapes).items():
        grad = mine[name].grad
        assert grad is not None
        torch.testing.assert_close(
            stack.grads[0, place].view(TOY.shapes[name]), grad, rtol=1e-3, atol=1e-6
        )


def test_no_worker_reaches_another() -> None:
    stack, tokens = stacked(2), windows(2)
    before = charlm.losses(stack.params, tokens, size=TOY).detach()
    other = tokens.clone()
    other[1] = 0
    stack.values[1].mul_(3.0)
    after = charlm.losses(stack.params, other, size=TOY).detach()
    assert float(before[0]) == float(after[0])
    assert float(before[1]) != float(after[1])


def test_an_untrained_model_knows_nothing() -> None:
    stack = Stack(TOY.shapes, workers=1)
    stack.load(flat(charlm.initial(TOY, generator=generator())))
    loss = charlm.losses(stack.params, windows(1, 32), size=TOY).item()
    assert loss == pytest.approx(math.log(len(VOCABULARY)), abs=0.1)


def test_rows_and_stacked_tensors_are_one_memory() -> None:
    stack = stacked(2)
    stack.values.zero_()
    assert all(float(param.detach().abs().sum()) == 0 for param in stack.params.values())
    assert [p.stop - p.start for p in places(TOY.shapes).values()] == [
        math.prod(shape) for shape in TOY.shapes.values()
    ]
