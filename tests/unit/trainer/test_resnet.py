"""ResNets for small images: sizes, stem, theta(0), and a block against its formula."""

import pytest
import torch
from torch import nn
from torch.nn.functional import batch_norm, conv2d, relu

from pww.trainer.resnet import Basic, resnet, small_resnet


@pytest.mark.parametrize(
    ("name", "num"), [("resnet18", 11_173_962), ("resnet34", 21_282_122), ("resnet50", 23_520_842)]
)
def test_sizes_are_the_papers(name: str, num: int) -> None:
    model = resnet(name, classes=10, seed=0)
    assert sum(p.numel() for p in model.parameters()) == num


def test_the_stem_keeps_the_image_and_stages_halve_it() -> None:
    model = resnet("resnet18", classes=10, seed=0)
    assert model.conv1.kernel_size == (3, 3)
    assert not any(isinstance(m, nn.MaxPool2d) for m in model.modules())
    sides: list[int] = []
    for name in ("conv1", "layer1", "layer2", "layer3", "layer4"):
        model.get_submodule(name).register_forward_hook(lambda *io: sides.append(io[2].shape[-1]))
    assert model.eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 10)
    assert sides == [32, 32, 16, 8, 4]


def test_theta0_follows_from_the_seed_alone() -> None:
    one = small_resnet(classes=10, seed=3).state_dict()
    torch.manual_seed(99)
    two = small_resnet(classes=10, seed=3).state_dict()
    other = small_resnet(classes=10, seed=4).state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["conv1.weight"], other["conv1.weight"])


def test_a_wide_convolution_has_its_fan_outs_spread() -> None:
    weight = resnet("resnet18", classes=10, seed=1).get_parameter("layer4.1.conv2.weight").detach()
    assert float(weight.std()) == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.01)


def test_a_block_is_its_formula() -> None:
    torch.manual_seed(0)
    block = Basic(4, 6, 2).double().eval()
    for module in block.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
    x = torch.randn(2, 4, 8, 8, dtype=torch.float64)

    def normal(y: torch.Tensor, bn: nn.Module) -> torch.Tensor:
        return batch_norm(y, bn.running_mean, bn.running_var, bn.weight, bn.bias)

    y = relu(normal(conv2d(x, block.conv1.weight, stride=2, padding=1), block.bn1))
    y = normal(conv2d(y, block.conv2.weight, padding=1), block.bn2)
    way = normal(conv2d(x, block.downsample[0].weight, stride=2), block.downsample[1])
    assert torch.allclose(block(x), relu(y + way), rtol=0, atol=1e-12)
