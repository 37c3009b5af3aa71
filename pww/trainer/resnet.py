"""ResNet-18, -34 and -50 for small images: a 3x3 first convolution, no max-pool.

Parameters at 10 classes: 11,173,962, 21,282,122 and 23,520,842. Names are those of torchvision's
models. Every tensor is drawn from a generator with its own seed, so theta(0) depends on neither the
ranks nor what was drawn before.
Source: He et al., arXiv 1512.03385, sections 3.3 and 4.2; the stride of a bottleneck is on its 3x3
convolution, as everybody has it now.
"""

import hashlib
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn.functional import relu

DEPTHS: dict[str, tuple[type["Basic"] | type["Bottleneck"], tuple[int, ...]]] = {}
"""Kind of block and blocks a stage, by name; filled below the classes."""


class Basic(nn.Module):
    """Two 3x3 convolutions and a way round them."""

    widening = 1

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(before, width, 3, stride), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _conv(width, width, 3, 1), nn.BatchNorm2d(width)
        self.downsample = _downsample(before, width, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images of the stage before in, of this one out."""
        out = relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        added: torch.Tensor = out + self.downsample(x)
        return relu(added)


class Bottleneck(nn.Module):
    """A 3x3 convolution between two 1x1 ones that make it narrow, and a way round."""

    widening = 4

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = width * self.widening
        self.conv1, self.bn1 = _conv(before, width, 1, 1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _conv(width, width, 3, stride), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = _conv(width, after, 1, 1), nn.BatchNorm2d(after)
        self.downsample = _downsample(before, after, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images of the stage before in, of this one out."""
        out = relu(self.bn1(self.conv1(x)))
        out = relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        added: torch.Tensor = out + self.downsample(x)
        return relu(added)


DEPTHS |= {
    "resnet18": (Basic, (2, 2, 2, 2)),
    "resnet34": (Basic, (3, 4, 6, 3)),
    "resnet50": (Bottleneck, (3, 4, 6, 3)),
}


class ResNet(nn.Module):
    """A residual network; `stages` gives the blocks of each, every one but the first halves the
    image and doubles the width.
    """

    def __init__(
        self,
        block: Callable[[int, int, int], nn.Module],
        stages: tuple[int, ...],
        *,
        widening: int,
        classes: int,
        channels: int = 3,
        width: int = 64,
    ) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(channels, width, 3, 1), nn.BatchNorm2d(width)
        before = width
        self.stages = len(stages)
        for number, blocks in enumerate(stages):
            here, layers = width << number, []
            for at in range(blocks):
                layers.append(block(before, here, 2 if number and at == 0 else 1))
                before = here * widening
            self.add_module(f"layer{number + 1}", nn.Sequential(*layers))
        self.fc = nn.Linear(before, classes)

    def blocks(self) -> Iterator[nn.Module]:
        """Those of all stages, in order."""
        for number in range(self.stages):
            yield from self.get_submodule(f"layer{number + 1}").children()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalised images (n, channels, height, width) in, logits (n, classes) out."""
        x = relu(self.bn1(self.conv1(x)))
        for number in range(self.stages):
            x = self.get_submodule(f"layer{number + 1}")(x)
        logits: torch.Tensor = self.fc(x.mean((2, 3)))
        return logits


def resnet(name: str, *, classes: int, seed: int) -> ResNet:
    """The network of a name in `DEPTHS`, at theta(0)."""
    block, stages = DEPTHS[name]
    model = ResNet(block, stages, widening=block.widening, classes=classes)
    initialize(model, seed=seed)
    return model


def small_resnet(*, classes: int, seed: int, channels: int = 1, width: int = 16) -> ResNet:
    """One block in each of three stages: enough for digits, seconds on two CPU cores."""
    model = ResNet(
        Basic, (1, 1, 1), widening=1, classes=classes, channels=channels, width=width
    )  # fmt: skip
    initialize(model, seed=seed)
    return model


@torch.no_grad()
def initialize(model: nn.Module, *, seed: int) -> None:
    """theta(0): convolutions by their fan-out, the head by its fan-in, BatchNorm at 1 and 0."""
    for name, parameter in model.named_parameters():
        digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
        draw = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
        if parameter.dim() == 4:
            nn.init.kaiming_normal_(
                parameter, mode="fan_out", nonlinearity="relu", generator=draw
            )  # fmt: skip
        elif parameter.dim() == 2:
            bound = parameter.shape[1] ** -0.5
            parameter.uniform_(-bound, bound, generator=draw)
        elif name.endswith("weight"):
            parameter.fill_(1.0)
        else:
            parameter.zero_()


def _conv(before: int, after: int, size: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(before, after, size, stride=stride, padding=size // 2, bias=False)


def _downsample(before: int, after: int, stride: int) -> nn.Module:
    """The way round a block: as it is where the shapes agree."""
    if stride == 1 and before == after:
        return nn.Identity()
    return nn.Sequential(_conv(before, after, 1, stride), nn.BatchNorm2d(after))
