"""The cosine codec against closed forms and NumPy in double precision."""

import numpy as np
import pytest
import torch
from scipy.fft import dct, dctn

from pww.codec import codec_named
from pww.codec.dct import inverse, transform


def wave(u, v):
    """The cosine whose only coefficient is (u, v); its norm is 1."""
    n = np.arange(64)
    rows, columns = (
        np.sqrt((2 if k else 1) / 64) * np.cos(np.pi * k * (2 * n + 1) / 128) for k in (u, v)
    )
    return torch.from_numpy(np.outer(rows, columns).astype(np.float32)).reshape(-1)


@pytest.mark.parametrize(("u", "v"), [(0, 0), (3, 5), (63, 0), (63, 63)])
def test_a_cosine_is_one_coefficient(u, v):
    x = 0.25 * wave(u, v)
    parts = codec_named("dct2-1").encode(x)
    place = int(parts["places"][0]) | int(parts["places"][1]) << 8
    assert place == 64 * u + v
    back = codec_named("dct2-1").decode(parts, (4096,))
    assert float((back - x).norm()) < 0.25 * 2.0**-10


def test_the_transform_is_orthonormal():
    x = torch.randn(5, 4096, dtype=torch.float64)
    assert torch.allclose(inverse(transform(x)), x, atol=1e-12)
    assert torch.allclose(transform(x).norm(dim=1), x.norm(dim=1), rtol=1e-12)
    alone = transform(wave(2, 7).view(1, -1).double())
    assert float(alone[0, 2 * 64 + 7]) == pytest.approx(1.0, abs=1e-6)


SHORT = (1, 5, 63, 64, 65, 256, 768, 1000, 1536, 4095)


@pytest.mark.parametrize("size", [*SHORT, 4096])
def test_every_length_has_as_many_coefficients_as_values(size):
    """Lines of 64 and what is behind them, against SciPy."""
    x = torch.randn(3, size, dtype=torch.float64)
    found = transform(x)
    whole = size // 64 * 64
    expected = np.empty((3, size))
    if whole:
        square = dctn(x[:, :whole].reshape(3, -1, 64).numpy(), norm="ortho", axes=(1, 2))
        expected[:, :whole] = square.reshape(3, whole)
    if whole < size:
        expected[:, whole:] = dct(x[:, whole:].numpy(), norm="ortho", axis=1)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)
    assert torch.allclose(inverse(found), x, atol=1e-12)
    assert torch.allclose(found.norm(dim=1), x.norm(dim=1), rtol=1e-12)


@pytest.mark.parametrize("size", [*SHORT, 4096, 5376])
def test_where_all_are_kept_nothing_is_lost(size):
    codec, x = codec_named("dct2-4096"), torch.randn(size)
    back = codec.decode(codec.encode(x), (size,))
    assert float((back - x).norm()) < 2.0**-11 * float(x.norm())


def test_a_short_tensor_loses_what_was_not_kept():
    """In DeMo what is lost stays in the momentum, so that it must be what the places say."""
    x = torch.randn(256)
    ordered = transform(x.view(1, -1).double()).abs().sort().values[0]
    back = codec_named("dct2-256").decode(codec_named("dct2-256").encode(x), (256,))
    assert float((back - x).norm()) == pytest.approx(float(ordered[:-16].norm()), rel=1e-4)


def test_what_is_lost_is_what_was_not_kept():
    x = torch.randn(4096)
    n, k = np.arange(64), np.arange(64)[:, None]
    cosines = np.sqrt(np.where(k == 0, 1, 2) / 64) * np.cos(np.pi * k * (2 * n + 1) / 128)
    c = np.sort(np.abs(cosines @ x.double().numpy().reshape(64, 64) @ cosines.T).reshape(-1))
    back = codec_named("dct2-256").decode(codec_named("dct2-256").encode(x), (4096,))
    assert float((back - x).norm()) == pytest.approx(np.sqrt((c[:-256] ** 2).sum()), rel=1e-5)


def test_what_neighbours_share_costs_less_than_by_topk():
    """What the codec is for: a smooth block."""
    smooth = sum(wave(u, v) * (1 + u + v) for u in range(5) for v in range(5))
    lost = {
        name: float(
            (smooth - codec_named(name).decode(codec_named(name).encode(smooth), (4096,))).norm()
        )
        for name in ("dct2-25", "topk-25-b16")
    }
    assert lost["dct2-25"] < 1e-3 * lost["topk-25-b16"]
