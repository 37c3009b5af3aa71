"""Methods with an outer loop, and plain training, against what they are said to be."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from lab_engine import PLAIN, TOY, after, batches, batches_without_moving, config, engine, grads_of

from pww.config.schema.lab import DilocoMethod
from pww.errors import ConfigError
from pww.lab import charlm, quadratic
from pww.lab.engine import Engine
from pww.lab.inner import Inner
from pww.lab.methods.diloco import Diloco, fragments
from pww.lab.quadratic_setting import Setting
from pww.lab.stack import Stack, flat, places

# identities


@pytest.mark.parametrize("optim", [(), PLAIN], ids=["adamw", "sgd"])
def test_one_worker_and_one_step_is_plain_training_bit_for_bit(optim: Sequence[str]) -> None:
    """Against torch's own optimiser on the model's own tensors."""
    words = ("workers=1", "method=local", "diloco.inner_steps=1", *optim)
    made = engine(*words)
    data = batches(engine(*words), 12)
    params = {name: p.detach().clone().requires_grad_() for name, p in made.stack.params.items()}
    optimiser = made._config.optim
    steps: torch.optim.Optimizer
    if optimiser.name == "adamw":
        steps = torch.optim.AdamW(
            params.values(), lr=optimiser.lr, betas=(optimiser.beta1, optimiser.beta2),
            weight_decay=optimiser.weight_decay, fused=True,
        )  # fmt: skip
    else:
        steps = torch.optim.SGD(params.values(), lr=optimiser.lr, fused=True)
    for number, tokens in enumerate(data):
        made.step()
        steps.zero_grad()
        charlm.losses(params, tokens, size=TOY).sum().backward()
        row = torch.cat([p.grad.reshape(-1) for p in params.values() if p.grad is not None])
        factor = (optimiser.clip_norm / (row.norm() + 1e-6)).clamp_max(1.0)
        for p in params.values():
            assert p.grad is not None
            p.grad.mul_(factor)
        steps.param_groups[0]["lr"] = made._lrs[number]
        steps.step()
    expected = flat({name: p.detach()[0] for name, p in params.items()})
    assert torch.equal(made.method.theta(), expected)


def test_one_worker_and_one_step_is_the_synchronous_method_bit_for_bit() -> None:
    one = after(30, "workers=1", "method=local", "diloco.inner_steps=1")
    assert torch.equal(one, after(30, "workers=1", "method=sync"))


def test_without_the_shortcut_it_is_the_same_to_a_rounding() -> None:
    """An outer rate next to 1 goes through delta and outer step, as every other run does."""
    near = "diloco.outer.lr=1.0000000001"  # 1 in fp32
    words = ("workers=1", "method=local", "diloco.inner_steps=1", *PLAIN)
    torch.testing.assert_close(after(10, *words, near), after(10, *words), rtol=1e-5, atol=1e-7)


def test_sgd_workers_with_one_step_are_one_worker_with_all_windows() -> None:
    words = ("workers=4", "method=local", "diloco.inner_steps=1", "optim.batch_windows=3", *PLAIN)
    made = engine(*words)
    data = batches(engine(*words), 10)
    theta = made.method.theta().clone()
    for number, tokens in enumerate(data):
        made.step()
        theta -= made._lrs[number] * grads_of(theta[None], tokens.view(1, 12, -1))[0]
    torch.testing.assert_close(made.method.theta(), theta, rtol=1e-4, atol=2e-6)


def test_synchronous_workers_are_one_worker_with_all_windows() -> None:
    words = ("workers=4", "method=sync", "optim.batch_windows=3", *PLAIN)
    data = batches(engine(*words), 10)
    made = engine(*words)
    theta = made.method.theta().clone()
    for number, tokens in enumerate(data):
        made.step()
        theta -= made._lrs[number] * grads_of(theta[None], tokens.view(1, 12, -1))[0]
    torch.testing.assert_close(made.method.theta(), theta, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("more", ["method.participation=0.6", "attack=noise"])
def test_the_same_seed_replays_and_another_does_not(more: str) -> None:
    words = ("codec=randomk", "codec.keep=512", "workers=6", more)
    assert torch.equal(after(20, *words), after(20, *words))
    assert not torch.equal(after(20, *words), after(20, *words, "seed=1"))


def test_cells_of_one_seed_see_the_same_text_from_the_same_start() -> None:
    one, other = engine("method=sync"), engine("codec=int4", "diloco.inner_steps=5")
    assert torch.equal(one.method.theta(), other.method.theta())
    assert all(torch.equal(a, b) for a, b in zip(batches(one, 3), batches(other, 3), strict=True))


# the outer loop


def rounds(words: Sequence[str], count: int, inner: int) -> tuple[Engine, list[torch.Tensor]]:
    """An engine after `count` rounds, and the deltas (M, n) of each round."""
    made = engine(*words, f"diloco.inner_steps={inner}")
    deltas = []
    for _ in range(count):
        for at in range(inner):
            start = made.method.theta().clone()
            if at == inner - 1:
                before = made.stack.values.clone()
                state = made._draws.get_state()
                tokens = batches(made, 1)[0]
                made._draws.set_state(state)
                grads = grads_of(before, tokens)
                deltas.append(start - (before - made._lrs[made.steps] * grads))
            made.step()
    return made, deltas


def test_diloco_is_nesterov_on_the_mean_delta() -> None:
    made, deltas = rounds(("workers=3", *PLAIN), 4, 3)
    theta = engine("workers=3", *PLAIN).method.theta().clone().double()
    velocity = torch.zeros_like(theta)
    for delta in deltas:
        mean = delta.double().mean(0)
        velocity = 0.9 * velocity + mean
        theta -= 0.7 * (0.9 * velocity + mean)
    torch.testing.assert_close(made.method.theta().double(), theta, rtol=1e-4, atol=1e-5)


def test_a_delay_takes_the_delta_of_tau_rounds_ago() -> None:
    made, deltas = rounds(("workers=3", "method=local", "method.delay=2", *PLAIN), 5, 2)
    theta = engine("workers=3", *PLAIN).method.theta().clone()
    for delta in deltas[:3]:  # the last two are on their way
        theta -= delta.mean(0)
    torch.testing.assert_close(made.method.theta(), theta, rtol=1e-4, atol=1e-5)


OVERLAP = ("method.overlap_steps=2", "diloco.inner_steps=3", *PLAIN)


def test_workers_go_on_from_their_own_until_the_outer_step_comes() -> None:
    """Written from the description: `x = theta' + (x_now - x_sent)`, with Nesterov on deltas."""
    made = engine("workers=3", *OVERLAP)
    theta = made.method.theta().clone()
    rows, velocity = theta.expand(3, -1).clone(), torch.zeros_like(theta)
    sent, delta = rows.clone(), torch.zeros_like(theta)
    for number, tokens in enumerate(batches_without_moving(made, 12)):
        rows -= made._lrs[number] * grads_of(rows, tokens)
        if number % 3 == 1 and number > 3:
            velocity = 0.9 * velocity + delta
            theta = theta - 0.7 * (0.9 * velocity + delta)
            rows = theta + (rows - sent)
        if number % 3 == 2:
            sent, delta = rows.clone(), (theta - rows).mean(0)
        made.step()
        torch.testing.assert_close(made.stack.values, rows, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(made.method.theta(), theta, rtol=1e-4, atol=1e-5)


def test_the_production_methods_with_overlap_are_the_quadratic_in_numpy() -> None:
    """The same draws into both: torch's optimiser, merge and outer step against plain NumPy."""
    words = ("workers=3", "method.overlap_steps=2", "diloco.inner_steps=5", *PLAIN)
    made, a, rounds = config(words), np.array([1.0, 0.3]), 20
    assert made.diloco is not None
    assert isinstance(made.method, DilocoMethod)
    stack = Stack({"x": (2,)}, workers=3)
    stack.load(torch.ones(2))
    method = Diloco(made, stack, made.method, made.diloco)
    draws = np.random.default_rng(4)
    thetas = []
    for _ in range(rounds * 5):
        noise = torch.from_numpy(draws.standard_normal((1, 3, 2))[0])
        stack.grads.copy_(torch.from_numpy(a) * stack.values + 0.1 * noise)
        method.step(0.2)
        thetas.append(method.theta().clone())
    reference = quadratic.run(
        Setting(
            curvature=tuple(a), workers=3, inner_steps=5, lr=0.2, noise=0.1, outer="nesterov",
            outer_lr=0.7, momentum=0.9, overlap=2,
        ),
        seed=4, rounds=rounds, burn_in=1 - 0.5 / rounds,
    )  # fmt: skip
    np.testing.assert_allclose(thetas[-1].numpy(), reference.position[0], rtol=1e-4, atol=1e-6)
    assert not torch.equal(thetas[-1], thetas[-6])


def test_no_overlap_is_what_it_was() -> None:
    words = ("workers=3", "diloco.inner_steps=3", "codec=int4")
    assert torch.equal(after(9, *words), after(9, *words, "method.overlap_steps=0"))
    assert not torch.equal(after(9, *words), after(9, *words, "method.overlap_steps=1"))


def test_what_is_on_its_way_when_the_run_ends_arrives() -> None:
    """One worker that averages loses nothing: it is plain training, to a rounding."""
    words = ("workers=1", "method=local", "diloco.inner_steps=4", "lab.steps=12", *PLAIN)
    late = engine(*words, "method.overlap_steps=3")
    for _ in range(12):
        late.step()
    plain = after(12, *words)
    torch.testing.assert_close(late.method.theta(), plain, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(late.stack.values[0], plain, rtol=1e-4, atol=1e-6)


def test_fragments_overlap_each_for_itself() -> None:
    words = ("method=local", "method.fragments=3", "method.overlap_steps=1", *PLAIN)
    made = engine(*words, "diloco.inner_steps=6")
    parts = fragments(TOY.shapes, 3)
    columns = [slice(places(TOY.shapes)[p[0]].start, places(TOY.shapes)[p[-1]].stop) for p in parts]
    for step in range(1, 14):
        before = made.method.theta().clone()
        made.step()
        moved = [not torch.equal(before[c], made.method.theta()[c]) for c in columns]
        assert moved == [step % 6 == 3, step % 6 == 5, step % 6 == 1 and step > 1]


def test_absent_workers_do_not_train_and_do_not_count() -> None:
    words = (
        "workers=4",
        "method=local",
        "method.participation=0.5",
        "diloco.inner_steps=2",
        *PLAIN,
    )
    made = engine(*words)
    seen = set()
    for _ in range(8):
        theta = made.method.theta().clone()
        data = batches_without_moving(made, 2)
        rows = theta.expand(4, -1).clone()
        for number, tokens in enumerate(data):
            rows -= made._lrs[made.steps + number] * grads_of(rows, tokens)
        tokens_before = made.tokens
        made.step()
        present = made.method._present  # type: ignore[attr-defined]
        made.step()
        seen.add(sum(present))
        assert made.tokens - tokens_before == 2 * sum(present) * 4 * TOY.context
        chosen = torch.tensor(present)
        expected = rows[chosen].mean(0) if any(present) else theta
        torch.testing.assert_close(made.method.theta(), expected, rtol=1e-4, atol=1e-5)
    assert len(seen) > 1


def test_who_was_absent_at_first_has_its_momentum_from_its_first_step() -> None:
    """Against torch's optimiser, a worker each."""
    words = ("workers=3", "method.worker_steps=[2,1,1]", "diloco.inner_steps=2", "optim=sgd")
    made = config(words)
    values, grads = torch.ones(3, 4), torch.zeros(3, 4)
    inner = Inner(made.optim, values, grads)
    alone = [torch.ones(4, requires_grad=True) for _ in range(3)]
    each = [torch.optim.SGD([row], lr=0.1, momentum=0.9, nesterov=True) for row in alone]
    draws = torch.Generator().manual_seed(3)
    for active in ([True, False, True], [False, False, True], [True, True, True]):
        grads.copy_(torch.randn(3, 4, generator=draws) / 10)
        for row, optimiser, grad, here in zip(alone, each, grads, active, strict=True):
            row.grad = grad.clone()
            if here:
                optimiser.param_groups[0]["weight_decay"] = made.optim.weight_decay
                optimiser.step()
        inner.step(0.1, active=active)
    torch.testing.assert_close(values, torch.stack(alone).detach())


def test_absent_or_expected_divide_by_different_numbers() -> None:
    words = (
        "workers=4",
        "method=local",
        "method.participation=0.5",
        "diloco.inner_steps=1",
        *PLAIN,
    )
    words = (*words, "seed=3")  # of this one three are there at first
    start = engine(*words).method.theta()
    one, other = engine(*words), engine(*words, "method.divide_by=expected")
    one.step()
    other.step()
    present = sum(one.method._present)  # type: ignore[attr-defined]
    assert present == 3
    ratio = (other.method.theta() - start).norm() / (one.method.theta() - start).norm()
    assert float(ratio) == pytest.approx(present / (4 * 0.5), rel=1e-3)


@pytest.mark.parametrize("weighting", ["tokens", "equal"])
def test_workers_with_fewer_steps_stop_and_weigh_less(weighting: str) -> None:
    words = (
        "workers=3", "method=local", "method.worker_steps=[4,2,1]", "diloco.inner_steps=4",
        f"method.weighting={weighting}", *PLAIN,
    )  # fmt: skip
    made = engine(*words)
    theta = made.method.theta().clone()
    rows = theta.expand(3, -1).clone()
    for number, tokens in enumerate(batches_without_moving(made, 4)):
        moved = rows - made._lrs[number] * grads_of(rows, tokens)
        for worker, limit in enumerate((4, 2, 1)):
            if number < limit:
                rows[worker] = moved[worker]
    for _ in range(4):
        made.step()
    share = torch.tensor([4, 2, 1]) / 7 if weighting == "tokens" else torch.full((3,), 1 / 3)
    torch.testing.assert_close(made.method.theta(), share @ rows, rtol=1e-4, atol=1e-5)
    assert made.tokens == 7 * 4 * TOY.context


def test_fragments_go_in_turn_and_all_of_them_every_phase() -> None:
    made = engine("method=local", "method.fragments=3", "diloco.inner_steps=6", *PLAIN)
    parts = fragments(TOY.shapes, 3)
    assert [n for part in parts for n in part] == list(TOY.shapes)
    columns = [slice(places(TOY.shapes)[p[0]].start, places(TOY.shapes)[p[-1]].stop) for p in parts]
    for step in range(1, 13):
        before = made.method.theta().clone()
        made.step()
        moved = [not torch.equal(before[c], made.method.theta()[c]) for c in columns]
        assert moved == [step % 6 == 2, step % 6 == 4, step % 6 == 0]
        for here, c in zip(moved, columns, strict=True):
            if here:
                assert torch.equal(made.stack.values[:, c], made.method.theta()[c].expand(4, -1))
    whole = 4 * 5376 * 2
    assert made.method.traffic.payload == whole
    assert made.method.rounds == 2


def test_one_fragment_is_no_streaming() -> None:
    assert fragments(TOY.shapes, 1) == [list(TOY.shapes)]
    assert [len(p) for p in fragments(TOY.shapes, 8)] == [1] * 8


def test_more_fragments_than_tensors() -> None:
    with pytest.raises(ConfigError, match="fragments=9: the model has 8 tensors"):
        engine("method.fragments=9", "diloco.inner_steps=10")


def test_eager_of_one_worker_has_no_delay() -> None:
    """Its own delta is all there is, and it counts at once."""
    words = ("workers=1", "diloco.inner_steps=3", *PLAIN)
    late = after(12, *words, "method.delay=1", "method.eager=true")
    torch.testing.assert_close(late, after(12, *words), rtol=1e-4, atol=1e-6)


def test_eager_workers_step_by_their_own_and_what_was_late() -> None:
    words = ("workers=2", "method=local", "method.delay=1", "method.eager=true", *PLAIN)
    made = engine(*words, "diloco.inner_steps=1")
    thetas = made.stack.values.clone()
    late, sent = torch.zeros_like(thetas[0]), torch.zeros_like(thetas)
    for tokens in batches_without_moving(made, 4):
        deltas = made._lrs[made.steps] * grads_of(thetas, tokens)
        thetas = thetas - (late + (deltas - sent) / 2)
        late, sent = deltas.mean(0), deltas
        made.step()
        torch.testing.assert_close(made.stack.values, thetas, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(made.method.theta(), thetas.mean(0), rtol=1e-4, atol=1e-5)
    assert not torch.equal(made.stack.values[0], made.stack.values[1])


def test_the_solo_step_is_whole() -> None:
    words = (
        "workers=1",
        "diloco.inner_steps=2",
        "diloco.outer.optimizer=sgd",
        "diloco.outer.momentum=0",
    )
    whole = after(6, *words, "diloco.outer.lr=0.5", "diloco.outer.solo_full_step=true")
    assert torch.equal(whole, after(6, *words, "diloco.outer.lr=1"))
