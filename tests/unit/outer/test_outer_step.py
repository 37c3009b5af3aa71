"""The pinned outer step against an independent NumPy version, torch.optim.SGD, and hand values."""

import math

import numpy as np
import pytest
import torch

from pww.config import schema
from pww.outer import add_weighted_, fp32, get_optimizer, outer_step_, weights
from pww.outer.step import CHUNK

F = np.float32


def outer_step(theta, momentum, delta, **how):
    """The step on copies: the new theta and momentum."""
    theta, momentum = theta.clone(), momentum.clone()
    outer_step_(theta, momentum, delta, **how)
    return theta, momentum


def optimizer_of(optimizer, lr, momentum, *, solo_full_step=False, contributors=2):
    outer = schema.Outer(
        optimizer=optimizer, lr=lr, momentum=momentum, solo_full_step=solo_full_step
    )
    return get_optimizer(outer, contributors=contributors)


def numpy_weights(tokens, staleness, discount):
    total = sum(tokens)
    return [
        F(np.float64(t) / np.float64(total) / (1.0 + np.float64(discount) * s))
        for t, s in zip(tokens, staleness, strict=True)
    ]


def numpy_step(theta, m, deltas, p, *, lr, b, partial):
    """The pinned lines, written down again from the specification."""
    acc = deltas[0] * p[0]
    for d, w in zip(deltas[1:], p[1:], strict=True):
        x = d * w
        acc = acc + x
    b = F(0) if partial else F(b)
    m_new = m * b
    m_new = m_new + acc
    u = m_new * b
    u = acc + u
    u = u * F(lr)
    return theta - u, m if partial else m_new


def accumulate(deltas, weights):
    """`sum_i p_i * delta_i` in the order given, as a merge does it."""
    first, *others = deltas
    total = first * weights[0]
    for delta, weight in zip(others, weights[1:], strict=True):
        add_weighted_(total, delta, weight)
    return total


def values(seed, n):
    """Ordinary values, signed zeros, denormals and large ones."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(n).astype(F) * np.exp2(rng.integers(-20, 5, n)).astype(F)
    x[::7] = 0.0
    x[::11] = -0.0
    x[::13] = rng.integers(1, 2**20, x[::13].size, dtype=np.uint32).view(F)  # denormals
    x[::17] = F(3e37)
    return x


def bits(x):
    return np.asarray(x, dtype=F).view(np.uint32)


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("num_deltas", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 4097, 100_003])
def test_bits_equal_numpys(size, num_deltas, partial):
    theta, m = values(1, size), values(2, size)
    tokens, late = [1000, 37, 555][:num_deltas], [0, 2, 1][:num_deltas]
    torch_theta, torch_m = torch.from_numpy(theta), torch.from_numpy(m)
    for round_ in range(3):
        deltas = [values(10 * round_ + i, size) for i in range(num_deltas)]
        p = weights(tokens, late, 0.25)
        assert [F(w) for w in p] == numpy_weights(tokens, late, 0.25)
        merged = accumulate((torch.from_numpy(d) for d in deltas), p)
        torch_theta, torch_m = outer_step(
            torch_theta, torch_m, merged, lr=0.7, momentum_factor=0.9, partial=partial
        )
        theta, m = numpy_step(theta, m, deltas, [F(w) for w in p], lr=0.7, b=0.9, partial=partial)
        assert (bits(torch_theta.numpy()) == bits(theta)).all()
        assert (bits(torch_m.numpy()) == bits(m)).all()


def test_a_chunk_border_changes_no_bit():
    theta, m, d = (torch.from_numpy(values(i, CHUNK + 5)) for i in range(3))
    whole, _ = outer_step(theta, m, d, lr=0.7, momentum_factor=0.9, partial=False)
    tail, _ = outer_step(theta[-9:], m[-9:], d[-9:], lr=0.7, momentum_factor=0.9, partial=False)
    assert torch.equal(whole[-9:].view(torch.int32), tail.view(torch.int32))


def test_denormals_are_kept():
    tiny = torch.tensor([1e-42], dtype=torch.float32)
    moved, _ = outer_step(
        torch.zeros(1), torch.zeros(1), tiny, lr=1.0, momentum_factor=0.0, partial=False
    )
    assert moved.item() == -tiny.item() != 0.0


def test_weights_are_token_shares_discounted_by_lateness():
    assert weights([3, 1], [0, 0], 0.25) == [0.75, 0.25]
    assert weights([1], [2], 0.25) == [fp32(1 / 1.5)]  # a lone late delta is discounted too
    assert weights([1, 2], [0, 1], 0.25) == [fp32(1 / 3), fp32(2 / 3 / 1.25)]
    with pytest.raises(AssertionError, match="without tokens"):
        weights([0], [0], 0.25)


def test_deltas_stay_as_they_are():
    one, two, theta, m = (torch.tensor([1.0, 2.0]) for _ in range(4))
    accumulate([one, two], [0.5, 0.5])
    outer_step_(theta, m, one, lr=0.7, momentum_factor=0.9, partial=False)
    assert one.tolist() == two.tolist() == [1.0, 2.0]
    assert theta.tolist() != m.tolist() != [1.0, 2.0]


def hand(site_a, site_b, *, optimizer, lr, momentum=0.9):
    """Global 1.0 and what two sites of equal tokens made of it."""
    theta, m = torch.tensor([1.0]), torch.tensor([0.0])
    deltas = [theta - torch.tensor([site_a]), theta - torch.tensor([site_b])]
    outer = optimizer_of(optimizer, lr, momentum)
    outer.step(theta, m, accumulate(deltas, weights([5, 5], [0, 0], 0.25)), partial=False)
    return theta.item()


def test_hand_values():
    assert hand(0.8, 0.6, optimizer="nesterov", lr=0.7) == pytest.approx(0.601, abs=1e-7)
    assert hand(0.8, 0.6, optimizer="nesterov", lr=1.0, momentum=0.0) == pytest.approx(0.7)
    assert hand(0.8, 0.6, optimizer="sgd", lr=1.0) == pytest.approx(0.7)


def test_hand_value_to_the_last_fp32_digit():
    """Deltas of fp32(0.2) and fp32(0.4), so the mean is fp32(0.3)."""
    mean = accumulate([torch.tensor([0.2]), torch.tensor([0.4])], [0.5, 0.5])
    theta, _ = outer_step(
        torch.ones(1), torch.zeros(1), mean, lr=0.7, momentum_factor=0.9, partial=False
    )
    assert f"{theta.item():.8f}" == "0.60099995"


def test_sgd_at_lr_1_is_federated_averaging():
    generator = torch.Generator().manual_seed(3)
    theta = torch.randn(1000, generator=generator)
    sites = [theta + 0.1 * torch.randn(1000, generator=generator) for _ in range(3)]
    p = weights([100, 200, 300], [0, 0, 0], 0.25)
    average = sum(w * s.double() for w, s in zip([1 / 6, 2 / 6, 3 / 6], sites, strict=True))
    m = torch.full((1000,), 7.0)
    optimizer_of("sgd", 1.0, 0.0).step(
        theta, m, accumulate([theta - s for s in sites], p), partial=False
    )
    torch.testing.assert_close(theta.double(), average, rtol=1e-6, atol=1e-6)
    assert (m == 7.0).all()  # plain descent has no buffer


def three_ways(rounds, *, heavy_ball=False):
    """Ours in fp64, torch's SGD in fp64, and FedMom as its paper writes it."""
    generator = torch.Generator().manual_seed(5)
    lr, b = fp32(0.7), fp32(0.9)
    w = torch.randn(50, dtype=torch.float64, generator=generator)
    ours, m = w.clone(), torch.zeros_like(w)
    parameter = torch.nn.Parameter(w.clone())
    sgd = torch.optim.SGD([parameter], lr=lr, momentum=b, nesterov=not heavy_ball)
    fed, v = w.clone(), w.clone()
    for _ in range(rounds):
        delta = torch.randn(50, dtype=torch.float64, generator=generator)
        ours, m = outer_step(ours, m, delta, lr=0.7, momentum_factor=0.9, partial=False)
        parameter.grad = delta.clone()
        sgd.step()
        v_next = fed - lr * delta
        fed, v = v_next + b * (v_next - v), v_next
    return ours, parameter.detach(), fed


@pytest.mark.parametrize("rounds", [1, 2, 20])
def test_nesterov_is_torchs_and_fedmom(rounds):
    ours, torchs, fedmom = three_ways(rounds)
    torch.testing.assert_close(ours, torchs, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ours, fedmom, rtol=1e-12, atol=1e-12)


def test_heavy_ball_differs():
    ours, torchs, _ = three_ways(2, heavy_ball=True)
    assert (ours - torchs).abs().max() > 0.1


def test_a_partial_phase_steps_without_momentum_and_leaves_it():
    theta, m, delta = torch.tensor([1.0]), torch.tensor([5.0]), torch.tensor([0.5])
    optimizer_of("nesterov", 0.5, 0.9).step(theta, m, delta, partial=True)
    assert (theta.item(), m.item()) == (0.75, 5.0)


def test_a_thousand_small_updates_add_up_in_fp32():
    theta, m, step = torch.tensor([0.0]), torch.tensor([0.0]), torch.tensor([-1e-3])
    low = torch.tensor([0.0], dtype=torch.bfloat16)
    for _ in range(1000):
        theta, m = outer_step(theta, m, step, lr=1.0, momentum_factor=0.0, partial=False)
        low -= step.to(torch.bfloat16)
    assert theta.item() == pytest.approx(1.0, abs=1e-5)
    assert not math.isclose(low.item(), 1.0, abs_tol=0.1)  # what bf16 masters would have made


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("lr", [1e-60, 1e-45, 0.7, 1e9])
@pytest.mark.parametrize("momentum_factor", [0.0, 1e-60, 0.9, 1.0])
def test_momentum_that_is_not_finite_shows_in_theta(momentum_factor, lr, partial):
    """So that a merge looks at theta only: over all extremes that the inputs can have."""
    ends = torch.tensor([0.0, 1e-45, 1.0, 3e38, -1.0, -3e38])
    theta, m, d = (grid.reshape(-1) for grid in torch.meshgrid(ends, ends, ends, indexing="ij"))
    d = torch.where(d.abs() == 1e-45, torch.inf, d)  # a mean that overflowed
    new_theta, new_m = outer_step(
        theta, m, d, lr=lr, momentum_factor=momentum_factor, partial=partial
    )
    assert not (new_theta.isfinite() & ~new_m.isfinite()).any()
    assert partial or not new_m.isfinite().all(), "there is something to show"
