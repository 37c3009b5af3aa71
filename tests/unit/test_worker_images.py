"""A ResNet's run in this process, to its end; its export is the model that was evaluated there."""

import json
import logging
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from pww import export, worker
from pww.central.exporting_images import export_resnet
from pww.central.generations import Generations
from pww.config import paths
from pww.config.load import compose, read_config
from pww.data.images import Labelled, gallery
from pww.errors import CheckpointError, StateError
from pww.log import QUIET, read_json_lines
from pww.trainer import inner_state
from pww.trainer.ranks import Ranks, init_ranks
from pww.trainer.resnet import small_resnet
from pww.trainer.stored_statistics import read_statistics
from pww.trainer.vision_state import Optimizers


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The worker owns its process: puts back what it changes in this one."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    root = logging.getLogger()
    handlers = list(root.handlers)
    levels = {name: logging.getLogger(name).level for name in ("", "pww", *QUIET)}
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)}
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    root.handlers[:] = handlers
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    for number, handler in before.items():
        signal.signal(number, handler)
    if dist.is_initialized():
        dist.destroy_process_group()


def noise() -> Labelled:
    draw = np.random.default_rng(5)
    pixels = draw.integers(0, 256, (400, 1, 8, 8)).astype(np.uint8)
    return Labelled(pixels, draw.integers(0, 10, 400).astype(np.uint8), "noise")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two phases of 48 digits, which nobody can read."""
    monkeypatch.setattr(gallery, "digit_images", noise)
    config = compose([
        "model=resnet_digits", "data.max_images=96", "optim.batch_windows=16",
        "darl.block_windows=16", "diloco.inner_steps=3", "evaluation.max_windows=64",
        "metrics.wandb.mode=disabled", "site.cores_per_rank=1",
    ])  # fmt: skip
    run = tmp_path / "run"
    run.mkdir()
    paths.freeze(config, run)
    assert worker.main([str(run)]) == 0
    return run


def test_an_export_is_the_model_that_was_evaluated(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Parameters and running statistics under torchvision's names, loaded strictly; the same loss
    and accuracy with plain torch.
    """
    assert export.main([str(run), f"out={tmp_path / 'out'}"]) == 0
    assert "export " in capsys.readouterr().out
    path = tmp_path / "out" / "model.safetensors"
    state = load_file(path)
    assert {"conv1.weight", "bn1.running_var", "layer2.0.downsample.1.running_mean",
            "layer3.0.bn2.num_batches_tracked", "fc.bias"} <= set(state)  # fmt: skip
    model = small_resnet(classes=10, seed=99)
    model.load_state_dict(state, strict=True)
    assert model.bn1.num_batches_tracked == 6
    with safe_open(path, "pt") as file:
        told = file.metadata()
    assert (told["model"], told["round"]) == ("resnet_digits", "2")
    config = read_config(run / paths.CONFIG_FILE)
    measured = gallery.open_gallery(config.data, project=paths.PROJECT).measured
    pixels = torch.from_numpy(measured.pixels[:64].copy()).float() / 255
    mean, std = (torch.tensor(json.loads(told[name])).view(1, -1, 1, 1) for name in ("mean", "std"))
    labels = torch.from_numpy(measured.labels[:64].astype(np.int64))
    with torch.no_grad():
        logits = model.eval()((pixels - mean) / std)
    evaluated = [r for r in read_json_lines(run / "metrics.jsonl") if r["split"] == "eval"][-1]
    loss = nn.functional.cross_entropy(logits, labels).item()
    assert loss == pytest.approx(evaluated["loss"], rel=1e-5)
    assert (logits.argmax(1) == labels).double().mean().item() == evaluated["accuracy"]


def test_statistics_of_another_round_are_not_taken(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They would be those of other weights; a phase that is not decided goes with no round."""
    newest = max((run / "checkpoints").glob("phase-*"))
    entry = json.loads((newest / "entry.json").read_text())
    for wrong, told in (
        ({"verdict": None}, "goes with theta of round 2: there is one after the next phase"),
        ({}, "the running statistics in "),
    ):
        (newest / "entry.json").write_text(json.dumps(entry | wrong))
        if not wrong:
            (newest / "inner" / ".metadata").write_bytes(b"torn")
        assert export.main([str(run), f"out={tmp_path / 'out'}"]) == 1
        assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_what_is_not_of_one_model_is_not_exported(run: Path, tmp_path: Path) -> None:
    generation = Generations(run / "central" / "generations").open("round-000002")
    for statistics in ({"bn1.running_mean": torch.zeros(7)}, {"x.running_mean": torch.zeros(16)}):
        with pytest.raises(StateError, match=r"they are of two models$"):
            export_resnet(
                generation, tmp_path / "out", name="x", statistics=statistics, mean=(0,), std=(1,)
            )
    folder = tmp_path / "file"
    folder.write_text("")
    with pytest.raises(StateError, match=r"cannot be written to .*make room, or name another"):
        export_resnet(generation, folder, name="x", statistics={}, mean=(0,), std=(1,))
    generation.theta.write_bytes(b"torn")
    with pytest.raises(StateError, match=r"theta\.safetensors cannot be exported: "):
        export_resnet(generation, folder, name="x", statistics={}, mean=(0,), std=(1,))


def test_a_state_without_statistics(tmp_path: Path) -> None:
    init_ranks(compose([]))
    model = nn.Linear(2, 2)
    plain = Optimizers(model, torch.optim.SGD(model.parameters(), lr=0.1))
    inner_state.save(tmp_path / "inner", plain, step=0, ranks=Ranks())
    with pytest.raises(
        CheckpointError, match=r"holds no running statistics: it was not written by"
    ):
        read_statistics(tmp_path / "inner")
