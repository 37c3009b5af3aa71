"""Images on their way into a network: normalised, and in training moved and mirrored at random."""

from collections.abc import Sequence

import torch
from torch.nn.functional import pad

PAD = 4


def normalized(
    pixels: torch.Tensor, *, mean: Sequence[float], std: Sequence[float]
) -> torch.Tensor:
    """Bytes (n, channels, height, width) as fp32 with the channels' statistics 0 and 1."""
    shape = (1, -1, 1, 1)
    middle = torch.tensor(mean, device=pixels.device).view(shape)
    spread = torch.tensor(std, device=pixels.device).view(shape)
    return (pixels.float() / 255.0 - middle) / spread


def augmented(pixels: torch.Tensor, *, draw: torch.Generator, flip: bool = True) -> torch.Tensor:
    """Each image cut at random from itself with 4 black pixels around it, half of them mirrored.

    `flip` is for pictures whose mirror image means the same, which digits' does not. `draw` is on
    the CPU, so that every device draws alike.
    """
    num, _, height, width = pixels.shape
    device = pixels.device
    down, right = torch.randint(0, 2 * PAD + 1, (2, num, 1), generator=draw).to(device)
    rows = down + torch.arange(height, device=device)
    columns = right + torch.arange(width, device=device)
    if flip:
        mirrored = torch.rand((num, 1), generator=draw).to(device) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
    around = pad(pixels, (PAD, PAD, PAD, PAD))
    which = torch.arange(num, device=device)[:, None, None]
    cut = around.permute(0, 2, 3, 1)[which, rows[:, :, None], columns[:, None, :]]
    return cut.permute(0, 3, 1, 2).contiguous()
