"""The task model: torchtitan's networks as the lab trains them, against plain torch."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lab_engine import PLAIN, config
from lab_models import GPT2, MODELS, SMALL, alone, engine, loss_of

from pww.config.schema.lab import LabConfig
from pww.errors import ConfigError
from pww.lab.network import context_of
from pww.lab.room import check_room, free_bytes, numbers
from pww.lab.stack import flat

QWEN = MODELS["qwen3"]


def batch(made_seed: int, workers: int, windows: int = 3) -> torch.Tensor:
    draws = torch.Generator().manual_seed(made_seed)
    return torch.randint(96, (workers, windows, 13), generator=draws)


# one pass for all workers


@pytest.mark.parametrize("name", MODELS)
def test_batched_is_a_loop_over_workers_by_plain_torch(name: str) -> None:
    made = engine(*MODELS[name], "workers=3")
    draws = torch.Generator().manual_seed(1)
    made.stack.values.add_(torch.randn(made.stack.values.shape, generator=draws), alpha=0.05)
    tokens = batch(2, 3)
    losses = made.network.losses(made.stack.params, tokens)
    made.stack.backward(losses)
    for worker in range(3):
        module = alone(made, {n: p[worker].detach() for n, p in made.stack.params.items()})
        module.zero_grad()
        loss = loss_of(module, tokens[worker])
        loss.backward()
        assert loss.item() == pytest.approx(losses[worker].item(), rel=1e-6)
        own = flat({n: p.grad for n, p in module.named_parameters() if p.grad is not None})
        scale = float(own.abs().max())
        assert float((own - made.stack.grads[worker]).abs().max()) < 1e-5 * scale


def test_a_worker_reaches_no_other() -> None:
    made = engine(*QWEN, "workers=2")
    tokens = batch(3, 2)
    before = made.network.losses(made.stack.params, tokens).detach()
    made.stack.values[1].mul_(2.0)
    tokens[1] = 0
    after = made.network.losses(made.stack.params, tokens).detach()
    assert float(before[0]) == float(after[0])
    assert float(before[1]) != float(after[1])


# training


@pytest.mark.parametrize("name", ["qwen3", "llama3", "gpt2"])
@pytest.mark.parametrize("optim", [(), PLAIN], ids=["adamw", "sgd"])
def test_one_worker_and_one_step_is_plain_training(name: str, optim: tuple[str, ...]) -> None:
    """Torch's own optimiser, clip and backward on the module itself."""
    words = (*MODELS[name], "workers=1", "method=local", "diloco.inner_steps=1", *optim)
    made, other = engine(*words), engine(*words)
    module = alone(other, {n: p[0].detach() for n, p in other.stack.params.items()})
    optimiser = made._config.optim
    steps: torch.optim.Optimizer
    if optimiser.name == "adamw":
        steps = torch.optim.AdamW(
            module.parameters(), lr=1.0, betas=(optimiser.beta1, optimiser.beta2),
            weight_decay=optimiser.weight_decay,
        )  # fmt: skip
    else:
        steps = torch.optim.SGD(module.parameters(), lr=1.0)
    for number in range(10):
        tokens = other._streams.draw(other._draws, windows=4, length=13)
        made.step()
        steps.zero_grad()
        loss_of(module, tokens[0]).backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), optimiser.clip_norm)
        steps.param_groups[0]["lr"] = made._lrs[number]
        steps.step()
    expected = flat({n: p.detach() for n, p in module.named_parameters()})
    torch.testing.assert_close(made.method.theta(), expected, rtol=1e-4, atol=1e-5)


CELLS = (
    "method=diloco codec=int4", "method=local codec=topk merge=median", "method=sync codec=randomk",
    "method=sparseloco", "method=dgc", "method=demo", "method=local codec=dct method.fragments=3",
    "method=diloco method.delay=1 method.eager=true", "method=local method.overlap_steps=1",
    "method=diloco merge=geometric attack=sign_flip attack.workers=1",
    "method=local merge=trimmed attack=inner_product attack.workers=1 task.split=author",
    "method=local method.participation=0.5 optim=sgd",
)  # fmt: skip


@pytest.mark.parametrize("cell", CELLS)
def test_what_the_lab_has_works_with_it_and_a_seed_replays(cell: str) -> None:
    words = [*QWEN, "workers=4", *cell.split(), "optim.warmup=0"]
    if config(("task=model", *words)).diloco is not None:
        words.append("diloco.inner_steps=4")

    def thetas(*more: str) -> tuple[torch.Tensor, torch.Tensor]:
        made = engine(*words, *more)
        start = made.method.theta().clone()
        for _ in range(8):
            made.step()
        return start, made.method.theta().clone()

    (start, one), (_, again), (elsewhere, other) = thetas(), thetas(), thetas("seed=1")
    assert torch.equal(one, again)
    assert not torch.equal(one, start)
    assert torch.isfinite(one).all()
    assert not torch.equal(start, elsewhere)
    assert not torch.equal(one, other)


def test_it_learns_and_evaluates_theta() -> None:
    made = engine(*QWEN, "workers=2", "diloco.inner_steps=10", "optim.lr=0.01")
    first = made.evaluate()
    assert first == pytest.approx(math.log(96), abs=0.3)
    for _ in range(60):
        made.step()
    assert made.evaluate() < first - 0.7
    assert made.tokens == 60 * 2 * 4 * 12


def test_torch_s_own_generator_is_as_it_was() -> None:
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    for words in (QWEN, GPT2):
        engine(*words)
    assert torch.equal(torch.rand(3), expected)


def test_the_compute_type_is_the_model_s() -> None:
    made, exact = engine(*QWEN, "model.dtype=bf16"), engine(*QWEN)
    tokens = batch(2, 4)
    losses, fp32 = (one.network.losses(one.stack.params, tokens) for one in (made, exact))
    assert losses.dtype == torch.float32
    assert not torch.equal(losses, fp32)
    torch.testing.assert_close(losses, fp32, rtol=2e-2, atol=0)
    made.stack.backward(losses)
    assert made.stack.grads.abs().max() > 0


# what is refused


def test_a_model_of_which_the_workers_do_not_fit_is_refused_before_it_is_made() -> None:
    told = r"model=qwen3_32b: 31,208,920,064 parameters, .*use a smaller model"
    with pytest.raises(ConfigError, match=told):
        engine("model=qwen3_32b")


def made_of(*words: str) -> LabConfig:
    return config(("task=model", *QWEN, *words))


def test_what_a_run_keeps_of_each_parameter() -> None:
    assert numbers(made_of()) == (6, 6)
    assert numbers(made_of("codec=topk", "method.overlap_steps=1")) == (8, 6)
    assert numbers(made_of("method.eager=true", "method.delay=1")) == (9, 6)
    assert numbers(made_of("method=sync", "optim=sgd")) == (3, 7)
    assert numbers(made_of("method=sync", "codec=topk")) == (4, 8)
    assert (numbers(made_of("method=dgc")), numbers(made_of("method=demo"))) == ((5, 6), (4, 6))


def test_the_need_is_of_all_workers_and_compared_with_what_is_free() -> None:
    need = 4 * 1000 * (3 * 6 + 6)
    check_room(made_of("workers=3"), parameters=1000, free=need)
    told = r"1,000 parameters, of each of which workers=3 keep 6 numbers and the run 6"
    with pytest.raises(ConfigError, match=told):
        check_room(made_of("workers=3"), parameters=1000, free=need - 1)


def test_what_is_free_is_the_system_s_within_the_limits_of_a_job(tmp_path: Path) -> None:
    assert free_bytes(tmp_path) > 2**20  # no /proc: all there is
    own = tmp_path / "sys/fs/cgroup/jobs/17"
    own.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 900 kB\nMemAvailable:  800 kB\n")
    assert free_bytes(tmp_path) == 800 * 1024
    (tmp_path / "proc/self/cgroup").write_text("1:cpu:/x\n0::/jobs/17\n")
    assert free_bytes(tmp_path) == 800 * 1024
    (own / "memory.max").write_text("max\n")
    (own.parent / "memory.max").write_text("70000\n")
    assert free_bytes(tmp_path) == 70000


def test_a_model_that_sees_what_it_should_predict() -> None:
    changes = "hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 16"
    drops = "hidden_dropout_prob: 0.0, attention_probs_dropout_prob: 0.0"
    with pytest.raises(ConfigError, match=r"model\.config=bert: it sees the tokens"):
        engine("model=hf/folder", "model.config=bert", "model.tie_embeddings=true",
               "model.seq_len=12", "model.dtype=fp32",
               *(f"+model.changes.{one.replace(': ', '=')}"
                 for one in f"{changes}, {drops}".split(", ")))  # fmt: skip


def test_a_window_is_the_model_s() -> None:
    assert context_of(made_of()) == 12
    assert context_of(config(())) == 48


def test_composing_it_needs_no_torch() -> None:
    code = (
        "import sys; from pww.lab.app import start;"
        "start(['task=model', 'model=llama3_debug', 'dry=true']);"
        "sys.exit('torch' in sys.modules)"
    )
    made = subprocess.run([sys.executable, "-c", code], check=False, timeout=120)
    assert made.returncode == 0


def test_sizes_are_checked_as_a_run_s() -> None:
    with pytest.raises(ConfigError, match=r"head_dim=8: times model\.num_heads=3 must be"):
        config(("task=model", "model=llama3_debug", *SMALL, "model.num_heads=3"))
