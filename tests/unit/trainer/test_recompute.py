"""Blocks that compute again what they forgot: the same step, each batch counted once."""

import copy

import torch
from torch import nn

from pww.trainer.recompute import recompute
from pww.trainer.resnet import Basic, ResNet, resnet, small_resnet


def stepped(model: nn.Module, x: torch.Tensor) -> None:
    for _ in range(2):
        model(x).square().sum().backward()


def test_gradients_and_statistics_are_those_without() -> None:
    plain = small_resnet(classes=10, seed=2, width=4).double()
    forgetful = copy.deepcopy(plain)
    recompute(forgetful.blocks())
    x = torch.randn(6, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    stepped(plain, x)
    stepped(forgetful, x)
    for (name, one), (again, other) in zip(
        plain.named_parameters(), forgetful.named_parameters(), strict=True
    ):
        assert name == again
        assert torch.equal(one.grad, other.grad), name
    state = forgetful.state_dict()
    for name, value in plain.state_dict().items():
        assert torch.equal(value, state[name]), name
    assert int(state["layer1.0.bn1.num_batches_tracked"]) == 2


def test_each_block_runs_twice_in_a_step_and_once_without_gradients() -> None:
    model = resnet("resnet18", classes=10, seed=0)
    assert len(list(model.blocks())) == 8
    assert all(isinstance(block, Basic) for block in model.blocks())
    recompute(model.blocks())
    ran: list[bool] = []
    for block in model.blocks():
        block.conv1.register_forward_hook(lambda module, *io: ran.append(module.training))
    model(torch.zeros(2, 3, 8, 8)).sum().backward()
    assert len(ran) == 16
    with torch.no_grad():
        model.eval()(torch.zeros(2, 3, 8, 8))
    assert len(ran) == 24


def test_what_is_kept_between_the_passes_is_the_blocks_inputs() -> None:
    def kept(model: ResNet) -> int:
        sizes: list[int] = []
        parameters = {p.data_ptr() for p in model.parameters()}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.data_ptr() not in parameters:
                sizes.append(tensor.nbytes)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model(torch.zeros(4, 3, 32, 32)).sum()
        return sum(sizes)

    plain, forgetful = (resnet("resnet18", classes=10, seed=0) for _ in range(2))
    recompute(forgetful.blocks())
    assert kept(forgetful) < kept(plain) / 3
