"""A phase, checked against the same training written again in plain fp64 torch."""

import gc
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from reference_qwen3 import State, loss_sum, state_of, train
from tiny import SEQ_LEN, After, Never, Steps, TinyCorpus, tiny_config

from pww.trainer.schedule import phase_lrs
from pww.trainer.titan import TitanTrainer

Build = Callable[..., TitanTrainer]
SHAPE = {"heads": 4, "kv_heads": 2, "layers": 2}
IDS = [5, 900, 17, 3, 44, 8, 999, 0, 61, 12, 7]  # 11 windows: the third step of four is ragged


def rows(ids: list[int]) -> torch.Tensor:
    return torch.from_numpy(TinyCorpus().windows(ids))


def batches(ids: list[int], size: int) -> list[torch.Tensor]:
    return [rows(ids[i : i + size]) for i in range(0, len(ids), size)]


def phase(trainer: TitanTrainer, ids: list[int], hook: Any = None, **given: Any) -> Any:
    given = {"progress": 0.05, "progress_end": 0.3, "stop": Never(), **given}
    return trainer.run(ids, on_step=hook or Steps(), **given)


def reference(
    trainer: TitanTrainer, over: dict[str, Any] | None = None
) -> tuple[State, list[float]]:
    """Parameters and losses after IDS, from the trainer's weights of now, without any padding."""
    optim = tiny_config(over).optim
    parts = batches(IDS, optim.batch_windows)
    state = state_of(dict(trainer.tensors()))
    losses = train(
        state, parts, phase_lrs(0.05, 0.3, len(parts), optim),
        betas=(optim.beta1, optim.beta2), weight_decay=optim.weight_decay, clip=optim.clip_norm,
        **SHAPE,
    )  # fmt: skip
    return {name: tensor.detach() for name, tensor in state.items()}, losses


@pytest.mark.parametrize("tied", [True, False])
def test_a_ragged_phase_is_the_unpadded_training(build: Build, tied: bool) -> None:
    over = {"model.tie_embeddings": tied}
    trainer = build(over)
    assert ("lm_head.weight" in trainer.shapes()) is not tied
    expected, losses = reference(trainer, over)
    steps = Steps()
    result = phase(trainer, IDS, steps)
    assert (result.steps, result.tokens, result.stopped) == (3, 11 * SEQ_LEN, False)
    assert result.drawn == tuple(sorted(IDS))
    assert [r["loss"] for r in steps.rows] == pytest.approx(losses, rel=1e-5)
    pooled = (4 * losses[0] + 4 * losses[1] + 3 * losses[2]) / 11
    assert result.loss == pytest.approx(pooled, rel=1e-5)
    for name, tensor in trainer.tensors():
        assert tensor.dtype == torch.float32
        # fp32 against fp64 over three AdamW steps: where a gradient is nearly 0, rounding decides
        # how far Adam goes, so a few elements may differ by part of a step of 1e-2.
        off = (tensor.double() - expected[name]).abs()
        assert float(off.mean()) < 2e-6, name
        assert float(off.max()) < 2e-3, name


def test_the_clipped_norm_and_the_rate_are_in_force(build: Build) -> None:
    over = {"optim.clip_norm": 0.01, "optim.lr": 0.001, "optim.decay": "constant"}
    trainer = build(over)
    expected, _ = reference(trainer, over)
    phase(trainer, IDS)
    for name, tensor in trainer.tensors():
        assert float((tensor.double() - expected[name]).abs().mean()) < 1e-6, name


def test_steps_are_reported_every_so_often_and_at_the_end(build: Build) -> None:
    trainer = build({"metrics.every_steps": 2})
    _, losses = reference(trainer)
    steps = Steps()
    phase(trainer, IDS, steps)
    assert [(r["step"], r["done"], r["of"]) for r in steps.rows] == [(2, 2, 3), (3, 3, 3)]
    assert [r["tokens"] for r in steps.rows] == [8 * SEQ_LEN, 11 * SEQ_LEN]
    assert steps.rows[0]["loss"] == pytest.approx((losses[0] + losses[1]) / 2, rel=1e-5)
    assert steps.rows[1]["loss"] == pytest.approx(losses[2], rel=1e-5)


def test_the_rate_follows_progress_and_is_reported(build: Build) -> None:
    trainer = build({"optim.warmup": 0.5, "optim.lr": 0.02})
    steps = Steps()
    phase(trainer, list(range(8)), steps, progress=0.1, progress_end=0.3)
    # Two steps, at the middles of [0.1, 0.2] and [0.2, 0.3] of a rise that ends at 0.5.
    assert [r["lr"] for r in steps.rows] == pytest.approx([0.02 * 0.15 / 0.5, 0.02 * 0.25 / 0.5])
    again = Steps()
    phase(trainer, list(range(8)), again, progress=0.1, progress_end=0.3)
    assert [r["lr"] for r in again.rows] == [r["lr"] for r in steps.rows]
    assert [r["step"] for r in again.rows] == [3, 4]
    assert trainer.step == 4


def test_a_stop_ends_at_a_step_boundary(build: Build) -> None:
    trainer = build({"metrics.every_steps": 100})
    _, losses = reference(trainer)
    result = phase(trainer, IDS, stop=After(2))
    assert (result.steps, result.stopped, trainer.step) == (2, True, 2)
    assert result.drawn == tuple(sorted(IDS[:8]))
    assert result.tokens == 8 * SEQ_LEN
    assert result.loss == pytest.approx((losses[0] + losses[1]) / 2, rel=1e-5)


def test_a_stop_before_the_first_step_trains_nothing(build: Build) -> None:
    trainer = build()
    before = dict(trainer.tensors())
    result = phase(trainer, IDS, stop=After(0))
    assert (result.steps, result.tokens, result.stopped, result.drawn) == (0, 0, True, ())
    assert math.isnan(result.loss)
    for name, tensor in trainer.tensors():
        assert torch.equal(tensor, before[name])


def test_a_phase_that_goes_to_nan_is_reported_and_not_raised(build: Build) -> None:
    trainer = build({"optim.lr": 1e30})
    result = phase(trainer, IDS * 2)
    assert not math.isfinite(result.loss)
    assert result.steps == 6


def test_held_out_loss_is_pooled_and_leaves_no_trace(build: Build) -> None:
    trainer, twin = build(), build()
    held_out = torch.from_numpy(TinyCorpus().held_out(list(range(11))))
    state = state_of(dict(trainer.tensors()))
    expected = float(loss_sum(state, held_out, **SHAPE).detach()) / (11 * SEQ_LEN)
    random = torch.get_rng_state()
    result = trainer.evaluate()
    assert result.tokens == 11 * SEQ_LEN  # num_held_out, below evaluation.max_windows
    assert result.loss == pytest.approx(expected, rel=1e-6)
    assert torch.equal(random, torch.get_rng_state())
    losses = []
    for one, evaluates in ((trainer, True), (twin, False)):
        first = phase(one, IDS).loss
        if evaluates:
            assert one.evaluate() == one.evaluate()
        losses.append((first, phase(one, IDS).loss))
    assert losses[0] == losses[1]
    for (name, a), (_, b) in zip(trainer.tensors(), twin.tensors(), strict=True):
        assert torch.equal(a, b), name


def test_max_windows_limits_the_evaluation(build: Build) -> None:
    trainer = build({"evaluation.max_windows": 3})
    state = state_of(dict(trainer.tensors()))
    # three of eleven, spread over the held-out part
    held_out = torch.from_numpy(TinyCorpus().held_out([0, 3, 7]))
    expected = float(loss_sum(state, held_out, **SHAPE).detach()) / (3 * SEQ_LEN)
    result = trainer.evaluate()
    assert (result.tokens, result.loss) == (3 * SEQ_LEN, pytest.approx(expected, rel=1e-6))


def test_theta0_follows_from_the_seed(build: Build) -> None:
    same, again, other = build(), build(), build({"seed": 8})
    tensors = [dict(t.tensors()) for t in (same, again, other)]
    assert all(torch.equal(tensors[0][n], tensors[1][n]) for n in tensors[0])
    assert not torch.equal(tensors[0]["tok_embeddings.weight"], tensors[2]["tok_embeddings.weight"])


def test_theta0_has_qwen3s_initial_spread(build: Build) -> None:
    for name, tensor in build({"model.tie_embeddings": False}).tensors():
        if "norm" in name:
            assert torch.equal(tensor, torch.ones_like(tensor)), name
        else:
            assert float(tensor.mean()) == pytest.approx(0, abs=0.004), name
            assert float(tensor.std()) == pytest.approx(0.02, rel=0.1), name


def test_bf16_layers_keep_fp32_masters(build: Build) -> None:
    trainer = build({"model.dtype": "bf16", "optim.lr": 1e-6, "optim.weight_decay": 0.0})
    before = dict(trainer.tensors())
    phase(trainer, IDS)
    moved = {n: (t - before[n]).abs().max() for n, t in trainer.tensors()}
    # A step of 1e-6 at 1.0 is far below bf16's resolution of 0.0078.
    assert 0 < float(moved["norm.weight"]) < 1e-5


def test_collection_is_on_again_after_a_phase(build: Build) -> None:
    trainer = build()
    phase(trainer, IDS)
    assert gc.isenabled()
