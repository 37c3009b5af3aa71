"""Images on their way into a network: normalised, and in training moved and mirrored at random."""

from collections.abc import Sequence

import torch
from torch.nn.functional import pad

PAD = 4
"""Black pixels around an image of 32x32."""


def normalized(
    pixels: torch.Tensor, *, mean: Sequence[float], std: Sequence[float]
) -> torch.Tensor:
    """Bytes (n, channels, height, width) as fp32 with the channels' statistics 0 and 1."""
    shape = (1, -1, 1, 1)
    middle = torch.tensor(mean, device=pixels.device).view(shape)
    spread = torch.tensor(std, device=pixels.device).view(shape)
    return (pixels.float() / 255.0 - middle) / spread


def augmented(
    pixels: torch.Tensor,
    *,
    draw: torch.Generator,
    border: int = PAD,
    flip: bool = True,
    first: int = 0,
    of: int = 0,
) -> torch.Tensor:
    """Each image cut at random from itself with black pixels around it, half of them mirrored.

    `flip` is for pictures whose mirror image means the same, which digits' does not. `draw` is on
    the CPU, so that every device draws alike. Where these are a part of a batch `of` images, from
    the `first` on, each is drawn for as if the batch were here whole.
    """
    num, _, height, width = pixels.shape
    device, of = pixels.device, of or num
    here = slice(first, first + num)
    down, right = torch.randint(0, 2 * border + 1, (2, of, 1), generator=draw)[:, here].to(device)
    rows = down + torch.arange(height, device=device)
    columns = right + torch.arange(width, device=device)
    if flip:
        mirrored = torch.rand((of, 1), generator=draw)[here].to(device) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
    around = pad(pixels, (border,) * 4)
    which = torch.arange(num, device=device)[:, None, None]
    cut = around.permute(0, 2, 3, 1)[which, rows[:, :, None], columns[:, None, :]]
    return cut.permute(0, 3, 1, 2).contiguous()
