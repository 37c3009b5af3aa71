"""Theta in and out bit for bit, and the inner state in its folder, on one rank."""

import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tiny import Never, Steps

from pww.errors import CheckpointError, PayloadError
from pww.trainer import inner_copy
from pww.trainer.titan import TitanTrainer

Build = Callable[..., TitanTrainer]


def phase(trainer: TitanTrainer, start: int = 0) -> Any:
    return trainer.run(
        range(start, start + 11), progress=0.1, progress_end=0.3, on_step=Steps(), stop=Never()
    )


def random_theta(trainer: TitanTrainer) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {n: torch.randn(s, generator=generator) for n, s in trainer.shapes().items()}


def weights(trainer: TitanTrainer) -> dict[str, torch.Tensor]:
    return dict(trainer.tensors())


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return list(a) == list(b) and all(torch.equal(a[n], b[n]) for n in a)


def test_theta_after_load_is_what_was_sent(build: Build, tmp_path: Path) -> None:
    trainer = build()
    theta = random_theta(trainer)
    theta["norm.weight"][0] = -0.0
    theta["norm.weight"][1] = 1e-45  # a denormal
    save_file(theta, tmp_path / "theta.safetensors")
    for _ in range(2):  # fresh, and after training and evaluation left their traces
        trainer.load(tmp_path / "theta.safetensors")
        got = weights(trainer)
        assert list(got) == list(trainer.shapes())
        for name, tensor in got.items():
            assert torch.equal(tensor.view(torch.int32), theta[name].view(torch.int32)), name
        phase(trainer)
        trainer.evaluate()


def test_training_goes_on_from_what_was_loaded(build: Build, tmp_path: Path) -> None:
    one, two = build(), build()
    phase(one)
    save_file(weights(one), tmp_path / "theta.safetensors")
    expected = one.evaluate()
    two.load(tmp_path / "theta.safetensors")
    assert two.evaluate() == expected


def test_tensors_are_copies(build: Build) -> None:
    trainer = build()
    before = weights(trainer)
    kept = {n: t.clone() for n, t in before.items()}
    phase(trainer)
    assert equal(before, kept)
    assert not equal(weights(trainer), kept)


def test_theta_that_does_not_fit_is_refused_whole(build: Build, tmp_path: Path) -> None:
    trainer = build()
    before = weights(trainer)
    path = tmp_path / "theta.safetensors"

    def refused(**changed: torch.Tensor | None) -> str:
        theta: dict[str, Any] = {**random_theta(trainer), **changed}
        save_file({n: t for n, t in theta.items() if t is not None}, path)
        with pytest.raises(PayloadError) as fault:
            trainer.load(path)
        assert equal(weights(trainer), before)
        return str(fault.value)

    name = "norm.weight"
    assert "missing norm.weight" in refused(**{name: None})
    assert "unknown extra" in refused(extra=torch.zeros(1))
    assert "norm.weight has shape (31,), here it is (32,)" in refused(**{name: torch.zeros(31)})
    assert "norm.weight is torch.float16, must be torch.float32" in refused(
        **{name: torch.zeros(32, dtype=torch.float16)}
    )
    assert "does not fit the model" in refused(**{name: None})
    many = {f"extra{i}": torch.zeros(1) for i in range(7)}
    assert "unknown extra0, extra1, extra2, extra3, extra4 and 2 more" in refused(**many)


def test_theta_that_cannot_be_read_is_refused(build: Build, tmp_path: Path) -> None:
    trainer = build()
    with pytest.raises(PayloadError, match=r"theta.safetensors is not there"):
        trainer.load(tmp_path / "theta.safetensors")
    save_file(random_theta(trainer), tmp_path / "theta.safetensors")
    whole = (tmp_path / "theta.safetensors").read_bytes()
    (tmp_path / "theta.safetensors").write_bytes(whole[:-1])
    with pytest.raises(PayloadError, match=r"theta\.safetensors"):
        trainer.load(tmp_path / "theta.safetensors")


def test_an_inner_state_resumes_to_the_bit(build: Build, tmp_path: Path) -> None:
    one = build()
    phase(one)
    one.save_inner(tmp_path / "inner")
    save_file(weights(one), tmp_path / "theta.safetensors")
    random = torch.get_rng_state()
    expected = phase(one, 11)
    two = build()
    two.load(tmp_path / "theta.safetensors")
    two.load_inner(tmp_path / "inner")
    assert two.step == 3
    assert torch.equal(torch.get_rng_state(), random)
    result = phase(two, 11)
    assert (result.loss, two.step) == (expected.loss, one.step)
    assert equal(weights(two), weights(one))


def test_saving_changes_nothing(build: Build, tmp_path: Path) -> None:
    """Torch makes missing moments by a step that Adam's bias correction would count."""
    one, two = build(), build()
    two.save_inner(tmp_path / "inner")
    assert phase(one).loss == phase(two).loss
    two.save_inner(tmp_path / "later")
    assert phase(one, 11).loss == phase(two, 11).loss
    assert equal(weights(one), weights(two))


def test_a_fresh_state_is_restored_as_fresh(build: Build, tmp_path: Path) -> None:
    one, two = build(), build()
    one.save_inner(tmp_path / "inner")
    save_file(weights(one), tmp_path / "theta.safetensors")
    phase(two)
    two.load(tmp_path / "theta.safetensors")
    two.load_inner(tmp_path / "inner")
    assert two.step == 0
    assert phase(two).loss == phase(one).loss
    assert equal(weights(one), weights(two))


def test_reset_forgets_the_moments_and_keeps_the_step(build: Build, tmp_path: Path) -> None:
    one, two = build(), build()
    phase(one)
    save_file(weights(one), tmp_path / "theta.safetensors")
    one.reset_inner()
    assert one.step == 3
    two.load(tmp_path / "theta.safetensors")
    assert phase(one, 11).loss == phase(two, 11).loss
    assert equal(weights(one), weights(two))


def test_the_configuration_is_the_only_home_of_hyper_parameters(
    build: Build, tmp_path: Path
) -> None:
    one, two = build({"optim.weight_decay": 0.5}), build({"optim.weight_decay": 0.0})
    phase(one)
    one.save_inner(tmp_path / "inner")
    two.load_inner(tmp_path / "inner")
    groups = [g for o in two._engine.optimizers for g in o.param_groups]
    assert {g["weight_decay"] for g in groups} == {0.0}


def test_an_inner_state_that_is_not_there_or_damaged(build: Build, tmp_path: Path) -> None:
    trainer = build()
    phase(trainer)
    inner = tmp_path / "inner"
    with pytest.raises(CheckpointError, match=r"no inner state in .*inner .*No such file"):
        trainer.load_inner(inner)
    trainer.save_inner(inner)
    with pytest.raises(CheckpointError, match=r"holds an inner state already: give a new folder"):
        trainer.save_inner(inner)
    good = (inner / "inner.json").read_text()
    (inner / "inner.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"inner\.json is damaged"):
        trainer.load_inner(inner)
    (inner / "inner.json").write_text(json.dumps({**json.loads(good), "format": 2}))
    with pytest.raises(CheckpointError, match=r"has format 2, this version reads 1"):
        trainer.load_inner(inner)
    (inner / "inner.json").write_text(good)
    (inner / ".metadata").rename(tmp_path / "metadata")
    with pytest.raises(CheckpointError, match=r"\.metadata is missing"):
        trainer.load_inner(inner)
    (tmp_path / "metadata").rename(inner / ".metadata")
    data = inner / "__0_0.distcp"
    data.write_bytes(data.read_bytes()[:5000])
    with pytest.raises(CheckpointError, match=r"does not hold this model's inner state"):
        trainer.load_inner(inner)


def test_another_models_inner_state_is_refused(build: Build, tmp_path: Path) -> None:
    small, large = build(), build({"model.num_layers": 3})
    phase(small)
    small.save_inner(tmp_path / "inner")
    with pytest.raises(CheckpointError, match=r"does not hold .*layers\.2\.") as fault:
        large.load_inner(tmp_path / "inner")
    assert "Traceback" not in str(fault.value)


def test_a_full_disk_is_named(build: Build, tmp_path: Path) -> None:
    trainer = build()
    phase(trainer)
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, old[1]))  # Python ignores SIGXFSZ
    try:
        with pytest.raises(CheckpointError, match=r"cannot write .*File too large; free some"):
            trainer.save_inner(tmp_path / "inner")
        assert not (tmp_path / "inner" / "inner.json").exists()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"cannot write .*file/inner: .*Not a directory"):
        trainer.save_inner(tmp_path / "file" / "inner")
    trainer.save_inner(tmp_path / "again")


def test_closing_twice_is_fine(build: Build) -> None:
    trainer = build()
    trainer.close()
    trainer.close()
    assert not torch.distributed.is_initialized()


def test_a_copy_is_what_a_save_would_have_written_then(build: Build, tmp_path: Path) -> None:
    trainer = build()
    fresh = trainer.copy_inner()
    phase(trainer)
    copy = trainer.copy_inner()
    trainer.save_inner(tmp_path / "saved")
    phase(trainer, 11)
    copy.write(tmp_path / "copied")
    fresh.write(tmp_path / "fresh")
    assert sorted(p.name for p in (tmp_path / "copied").iterdir()) == sorted(
        p.name for p in (tmp_path / "saved").iterdir()
    )
    states = []
    for name in ("saved", "copied", "fresh"):
        other = build()
        phase(other, 22)
        other.load_inner(tmp_path / name)
        states.append((other.step, state_of(other)))
    (step, saved), (copied_step, copied), (fresh_step, nothing) = states
    assert step == copied_step > fresh_step == 0
    assert nothing == {}
    assert len(saved) > 10
    assert saved.keys() == copied.keys()
    assert all(torch.equal(saved[name], copied[name]) for name in saved)


def state_of(trainer: TitanTrainer) -> dict[str, torch.Tensor]:
    optimizers = trainer._engine.optimizers
    if not any(optimizer.state for optimizer in optimizers):
        return {}
    return {n: t.clone() for n, t in optimizers.state_dict().items() if n.startswith("state.")}


def test_a_copy_that_the_disk_refuses_is_told(build: Build, tmp_path: Path) -> None:
    (tmp_path / "inner").write_text("in the way")
    with pytest.raises(CheckpointError, match=r"cannot write the inner state to .*inner: .*exists"):
        build().copy_inner().write(tmp_path / "inner")


def test_a_state_that_cannot_be_copied_is_told(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise MemoryError("no memory")

    monkeypatch.setattr(inner_copy._Memory, "create_stream", full)
    with pytest.raises(CheckpointError) as fault:
        build().copy_inner()
    assert str(fault.value) == (
        "cannot copy the inner state (no memory); diloco.overlap=false writes it without a copy"
    )
