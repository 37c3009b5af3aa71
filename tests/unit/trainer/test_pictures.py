"""Images are cut from themselves with a border, mirrored half of the time, and normalised."""

import torch

from pww.trainer.pictures import PAD, augmented, normalized


def test_each_image_is_a_cut_of_itself() -> None:
    """Pixels carry their place, so the cut that was made can be read off."""
    num, side = 200, 6
    place = torch.arange(1, side * side + 1, dtype=torch.uint8).view(1, 1, side, side)
    out = augmented(place.expand(num, 3, side, side), draw=torch.Generator().manual_seed(1))
    assert out.shape == (num, 3, side, side)
    assert out.dtype == torch.uint8
    around = torch.nn.functional.pad(place[0, 0], (PAD,) * 4)
    cuts = {}
    for down in range(2 * PAD + 1):
        for right in range(2 * PAD + 1):
            cut = around[down : down + side, right : right + side]
            cuts[cut.numpy().tobytes()] = (down, right, False)
            cuts[cut.flip(1).numpy().tobytes()] = (down, right, True)
    seen = []
    for image in out:
        assert torch.equal(image[0], image[1])
        assert torch.equal(image[0], image[2])
        seen.append(cuts[image[0].numpy().tobytes()])
    assert {down for down, _, _ in seen} == set(range(2 * PAD + 1))
    assert {right for _, right, _ in seen} == set(range(2 * PAD + 1))
    assert 60 < sum(flipped for *_, flipped in seen) < 140


def test_digits_are_not_mirrored() -> None:
    ramp = torch.arange(1, 9, dtype=torch.uint8).view(1, 1, 1, 8).expand(50, 1, 8, 8)
    out = augmented(ramp, draw=torch.Generator().manual_seed(2), flip=False).int()
    rises = out[..., 1:] - out[..., :-1]
    inside = (out[..., 1:] > 0) & (out[..., :-1] > 0)
    assert bool((rises[inside] == 1).all())


def test_statistics_become_0_and_1() -> None:
    pixels = torch.randint(0, 256, (64, 2, 8, 8), dtype=torch.uint8)
    scaled = pixels.double() / 255
    mean, std = scaled.mean((0, 2, 3)), scaled.std((0, 2, 3), unbiased=False)
    out = normalized(pixels, mean=mean.tolist(), std=std.tolist())
    assert out.dtype == torch.float32
    assert torch.allclose(out.mean((0, 2, 3)), torch.zeros(2), atol=1e-5)
    assert torch.allclose(out.std((0, 2, 3), unbiased=False), torch.ones(2), atol=1e-5)
