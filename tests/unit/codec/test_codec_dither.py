"""Subtractive dither: unbiased, and off by a noise that does not know the value."""

import pytest
import torch

from pww.codec import codec_named
from pww.errors import PayloadError

BITS = pytest.mark.parametrize("bits", [4, 8])


def errors(bits: int, x: torch.Tensor, draws: int) -> tuple[torch.Tensor, float]:
    """What many seeds make of `x`, less `x`, and the step."""
    codec = codec_named(f"dither-{bits}")
    found = [codec.decode(codec.encode(x, seed=i), tuple(x.shape)) - x for i in range(draws)]
    step = float(codec.encode(x)["scales"][0])
    return torch.stack(found).double(), step


@BITS
def test_the_error_is_even_over_a_step_whatever_the_value(bits: int) -> None:
    """Mean 0, variance step²/12, nothing above half a step: for large, small and halfway values."""
    x = torch.tensor([1.0, 0.0, 1e-4, -0.31, 0.5 / 6, -1.0, 0.25])
    off, step = errors(bits, x, 4000)
    assert step == pytest.approx(1 / (2 ** (bits - 1) - 2), rel=1e-6)
    assert float(off.abs().max()) <= step / 2 * (1 + 1e-5)
    noise = step / 12**0.5
    assert float(off.mean(0).abs().max()) < 5 * noise / 4000**0.5
    assert off.var(0).sqrt().tolist() == pytest.approx([noise] * 7, rel=0.06)


@BITS
def test_two_values_err_apart(bits: int) -> None:
    off, _ = errors(bits, torch.linspace(-1, 1, 8), 4000)
    apart = torch.corrcoef(off.T) - torch.eye(8)
    assert float(apart.abs().max()) < 0.08


def test_plain_rounding_is_biased_where_dither_is_not() -> None:
    """A value of a third of a step is lost for good by int4."""
    x = torch.tensor([1.0, 0.05])
    int4 = codec_named("int4")
    assert float(int4.decode(int4.encode(x), (2,))[1]) == 0.0
    off, _ = errors(4, x, 4000)
    assert float(off.mean(0)[1]) == pytest.approx(0.0, abs=0.005)


@BITS
def test_a_code_or_a_scale_that_is_none(bits: int) -> None:
    codec = codec_named(f"dither-{bits}")
    parts = codec.encode(torch.ones(4))
    with pytest.raises(
        PayloadError, match=f"a dither-{bits} code of -{2 ** (bits - 1)} is damaged"
    ):
        codec.decode({**parts, "codes": torch.zeros_like(parts["codes"])}, (4,))
    with pytest.raises(PayloadError, match="is damaged: scales are 0 to"):
        codec.decode({**parts, "scales": torch.full((1,), 3e38)}, (4,))
