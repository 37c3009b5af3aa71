"""Methods that exchange gradients, step by step against their definitions."""

import pytest
import torch
from lab_engine import PLAIN, TOY, batches_without_moving, engine, grads_of

from pww.codec import codec_named
from pww.lab.inner import clip_rows_
from pww.lab.stack import places


def encoded_by(codec: str, rows: torch.Tensor) -> torch.Tensor:
    made, found = codec_named(codec), torch.empty_like(rows)
    for name, place in places(TOY.shapes).items():
        for row, out in zip(rows, found, strict=True):
            parts = made.encode(row[place].view(TOY.shapes[name]))
            out[place] = made.decode(parts, TOY.shapes[name]).view(-1)
    return found


def test_dgc_step_by_step() -> None:
    """u = m u + g, v += u; the largest of v go out; u and what went of v are forgotten."""
    made = engine(
        "method=dgc", "workers=2", "codec.value_bits=16", "optim.lr=0.1", "optim.warmup=0"
    )
    theta = made.method.theta().clone()
    u = v = torch.zeros(2, theta.numel())
    for tokens in batches_without_moving(made, 5):
        u = 0.9 * u + grads_of(theta.expand(2, -1), tokens)
        v = v + u
        sent = encoded_by("topk-64-b16", v)
        v = v - sent
        u = torch.where(sent != 0, 0.0, u)
        theta = theta - made._lrs[made.steps] * sent.mean(0)
        made.step()
        torch.testing.assert_close(made.method.theta(), theta, rtol=1e-3, atol=1e-5)


def test_demo_step_by_step() -> None:
    """The momentum loses what it sends; the step is the sign of the average."""
    made = engine("method=demo", "workers=2", "optim.lr=1e-3", "optim.warmup=0")
    theta = made.method.theta().clone()
    momentum = torch.zeros(2, theta.numel())
    agree = 0.0
    for tokens in batches_without_moving(made, 3):
        momentum = 0.999 * momentum + grads_of(made.stack.values, tokens)
        sent = encoded_by("dct2-64", momentum)
        momentum = momentum - sent
        before = made.method.theta().clone()
        rate = made._lrs[made.steps]
        made.step()
        moved = before - made.method.theta()
        torch.testing.assert_close(moved.abs(), torch.full_like(moved, rate), rtol=0, atol=2e-7)
        agree += float((moved.sign() == sent.mean(0).sign()).double().mean()) / 3
    assert agree > 0.999  # a value next to zero may round to either side


def test_compressed_gradients_keep_what_they_did_not_send() -> None:
    words = ("method=sync", "workers=2", "codec=topk", "codec.keep=256", *PLAIN)
    made = engine(*words)
    theta, rest = made.method.theta().clone(), torch.zeros(2, 5376)
    for tokens in batches_without_moving(made, 5):
        wanted = grads_of(theta.expand(2, -1), tokens) + rest
        sent = encoded_by("topk-256-b2", wanted)
        rest = wanted - sent
        theta = theta - made._lrs[made.steps] * sent.mean(0)
        made.step()
        torch.testing.assert_close(made.method.theta(), theta, rtol=1e-3, atol=1e-4)


def test_workers_are_clipped_one_by_one() -> None:
    rows = torch.stack([torch.full((4,), 3.0), torch.full((4,), 0.1)])
    expected = rows.clone().requires_grad_()
    expected.grad = rows[:1].clone().expand(2, -1).clone()
    clip_rows_(rows, 2.0)
    assert float(rows[0].norm()) == pytest.approx(2.0, rel=1e-5)
    assert torch.equal(rows[1], torch.full((4,), 0.1))
