"""The identities of DiLoCo on the ranks of one allocation; every rank runs each of them."""

import numpy as np
import torch
from allocation import (
    BATCH,
    CPU,
    Here,
    batch,
    descend,
    diloco,
    equal,
    linear,
    one_value,
    plain,
    shift,
    whole,
)
from torch import nn

from pww.codec import codec_named
from pww.outer import fp32


def synchronous(replicas: int, kind: str) -> None:
    """H = 1, SGD inside, SGD(1, 0) outside: large-batch synchronous SGD, to the bit in fp64."""
    here = Here(replicas)
    # every replica starts elsewhere, and every rank that holds all of it
    model = here.shared(linear(here.rank if kind == "ddp" else here.replica), kind)
    collective = here.collective(plain(model))
    lone = linear(0)
    equal(whole(model), whole(lone))
    share = BATCH // here.world
    for step in range(3):
        x, y = batch(step)
        mine = slice(here.rank * share, (here.rank + 1) * share)
        descend(model, x[mine], y[mine])
        report = collective.step(share * here.blocks.size)
        descend(lone, x, y)
        equal(whole(model), whole(lone))
        assert report.outer_step == step + 1
        assert report.merged == tuple(range(replicas))
        assert report.tokens == BATCH


def fedavg(replicas: int, kind: str) -> None:
    """H = 2, unequal tokens: theta = sum_i p_i theta_i, with theta_i from lone runs."""
    here = Here(replicas)
    model = here.shared(linear(5), kind)
    collective = here.collective(plain(model))
    tokens = {1: [8], 2: [24, 8], 4: [4, 4, 8, 16]}[replicas]
    share = BATCH // here.blocks.size
    for h in range(2):
        x, y = batch(10 * here.replica + h)
        mine = slice(here.inner.place * share, (here.inner.place + 1) * share)
        descend(model, x[mine], y[mine])
    collective.step(tokens[here.replica])
    ends = []
    for replica in range(replicas):
        lone = linear(5)
        for h in range(2):
            descend(lone, *batch(10 * replica + h))
        ends.append(whole(lone))
    p = [count / sum(tokens) for count in tokens]
    equal(
        whole(model),
        [sum(w * t for w, t in zip(p, c, strict=True)) for c in zip(*ends, strict=True)],
    )


def nesterov_is_torchs(replicas: int, kind: str) -> None:
    """FedMom and torch.optim.SGD(nesterov=True) on the mean delta, to fp64 rounding; and not
    heavy ball."""
    here = Here(replicas)
    model = here.shared(linear(7), kind)
    collective = here.collective(plain(model), diloco=diloco("nesterov", 0.7, 0.9))
    lr, beta = fp32(0.7), fp32(0.9)
    kinds = {"nesterov": True, "heavy": False}
    lone = {name: linear(7) for name in kinds}
    descents = {
        name: torch.optim.SGD(lone[name].parameters(), lr=lr, momentum=beta, nesterov=nesterov)
        for name, nesterov in kinds.items()
    }
    w = whole(lone["nesterov"])
    v = [t.clone() for t in w]
    for step in range(4):
        moves = [0.5**step * (replica + 1) for replica in range(replicas)]
        shift(plain(model), moves[here.replica])
        collective.step(1)
        mean = sum(moves) / replicas
        for name, descent in descents.items():
            for parameter in lone[name].parameters():
                parameter.grad = torch.full_like(parameter, mean)
            descent.step()
        ahead = [a - lr * mean for a in w]  # w - w_avg is the mean delta
        w = [a + beta * (a - b) for a, b in zip(ahead, v, strict=True)]
        v = ahead
        for ours, torchs, fedmom, heavy in zip(
            whole(model), whole(lone["nesterov"]), w, whole(lone["heavy"]), strict=True
        ):
            assert torch.allclose(ours, torchs, rtol=0, atol=1e-14)
            assert torch.allclose(ours, fedmom, rtol=0, atol=1e-14)
            assert not torch.allclose(ours, heavy, rtol=0, atol=1e-3)


def by_hand() -> None:
    """Global 1.0, replicas 0.8 and 0.6; in fp32 1 - 0.8 is not 0.2, hence two units in the last."""
    here = Here(2)
    for dtype, off in ((torch.float32, 2.0**-23), (torch.float64, 2.0**-26)):
        for optimizer, lr, momentum, expected in (
            ("nesterov", 0.7, 0.9, 0.601), ("sgd", 1.0, 0.0, 0.7),
        ):  # fmt: skip
            model = one_value(1.0, dtype)
            collective = here.collective(model, diloco=diloco(optimizer, lr, momentum))
            with torch.no_grad():
                model.w.fill_([0.8, 0.6][here.replica])
            collective.step(1)
            assert abs(float(model.w) - expected) < off, (dtype, optimizer, float(model.w))


def pinned_bits(codec: str) -> None:
    """Unequal tokens, Nesterov, ordinary fp32 values: NumPy's bits on the written-down lines."""
    here = Here(4)
    draw = np.random.default_rng(3)
    model = nn.Module()
    first = torch.from_numpy(draw.standard_normal((5, 13)).astype(np.float32))
    model.w = nn.Parameter(first.clone())
    how = {} if codec == "none" else {"codec": codec_named(codec)}
    collective = here.collective(model, diloco=diloco("nesterov", 0.7, 0.9), **how)
    theta, m, f = first.numpy().copy(), np.zeros((5, 13), np.float32), np.float32
    for _ in range(3):
        tokens = [int(t) for t in draw.integers(1, 1000, 4)]
        inner = [theta + draw.standard_normal((5, 13)).astype(f) * f(0.1) for _ in range(4)]
        with torch.no_grad():
            model.w.copy_(torch.from_numpy(inner[here.replica]))
        collective.step(tokens[here.replica])
        p = [f(np.float64(t) / np.float64(sum(tokens))) for t in tokens]
        acc = (theta - inner[0]) * p[0]
        for end, weight in zip(inner[1:], p[1:], strict=True):
            x = (theta - end) * weight
            acc = acc + x
        m = m * f(0.9)
        m = m + acc
        u = m * f(0.9)
        u = acc + u
        u = u * f(0.7)
        theta = theta - u
        got = model.w.detach().numpy()
        assert (got.view(np.uint32) == theta.view(np.uint32)).all()


def bf16_adds_up() -> None:
    """1000 outer updates of 1e-3 in a bf16 model are 1.0: theta is fp32."""
    here = Here(2)
    model = one_value(0.0, torch.bfloat16)
    collective = here.collective(model, diloco=diloco("sgd", 1e-3, 0.0), device=CPU)
    for _ in range(1000):
        with torch.no_grad():
            model.w.add_(1.0)
        collective.step(1)
    assert collective.theta("w").dtype == torch.float32
    assert abs(float(collective.theta("w")) - 1.0) < 2e-3
    still = collective.theta("w").clone()
    collective.step(1)  # nobody moved: theta's last bits, which bf16 cannot hold, stay
    assert torch.equal(collective.theta("w"), still)
