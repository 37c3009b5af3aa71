"""Methods that exchange gradients, step by step against their definitions."""

import pytest
import torch
from lab_engine import PLAIN, TOY, batches_without_moving, config, engine, grads_of

from pww.codec import codec_named
from pww.lab.engine import method_of
from pww.lab.exchange import Exchange
from pww.lab.inner import clip_rows_
from pww.lab.stack import Stack, places


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


def test_dgc_clips_each_worker_to_its_share_of_the_norm() -> None:
    """Of M equal workers' gradients the sum of squares is then the clip's square."""
    made = config(("method=dgc", "workers=4", "optim.clip_norm=2"))
    stack = Stack(TOY.shapes, workers=4)
    method = method_of(made, stack)
    stack.grads.fill_(1.0)
    method.step(1e-3)
    norms = stack.grads.norm(dim=1)
    torch.testing.assert_close(norms, torch.full((4,), 2 / 4**0.5), rtol=1e-4, atol=0)


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


@pytest.mark.parametrize(
    "words",
    [
        ("method=dgc", "attack=inner_product"),
        ("method=demo", "attack=sign_flip"),
        ("method=demo", "attack=noise"),
        ("method=sync", "codec=topk", "codec.keep=256", "attack=noise", *PLAIN),
    ],
    ids=lambda words: " ".join(words[:1] + words[-1:]),
)
def test_an_attacker_keeps_what_an_honest_worker_keeps(words: tuple[str, ...]) -> None:
    """Over 200 rounds: what its own vector left would be attacked again in each of them."""
    plain = tuple(word for word in words if not word.startswith("attack"))
    pair = []
    for own in (plain, (*words, "attack.scale=10")):
        made = config(("workers=4", "merge=median", *own))
        stack = Stack(TOY.shapes, workers=4)
        pair.append((stack, method_of(made, stack)))
    draws = torch.Generator().manual_seed(0)
    for _ in range(200):
        grads = torch.randn(4, 5376, generator=draws)
        for stack, method in pair:
            stack.grads.copy_(grads)
            method.step(1e-3)
    (_, honest), (_, attacked) = pair
    for state in ("_momentum", "_waiting"):
        if hasattr(honest, state):
            assert torch.equal(getattr(attacked, state), getattr(honest, state))
    residuals = [method._exchange._residual for method in (honest, attacked)]  # type: ignore[attr-defined]
    assert torch.equal(*residuals)


def test_what_is_sent_is_attacked() -> None:
    """The last worker's vector, in the codec's form, times minus three."""
    exchange = Exchange(config(("method=dgc", "workers=2", "codec.value_bits=16",
        "attack=sign_flip", "attack.scale=3")), TOY.shapes)  # fmt: skip
    rows = torch.randn(2, 5376, generator=torch.Generator().manual_seed(0))
    before = rows.clone()
    own, sent = exchange.coded(rows, round_=0, who=range(2), names=list(TOY.shapes))
    assert torch.equal(rows, before)
    assert torch.equal(own[0], sent[0])
    torch.testing.assert_close(sent[1], own[1] * -3, rtol=1e-3, atol=1e-6)
