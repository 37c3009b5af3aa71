"""One training, however it is laid out: ranks, copies, shards, microbatches, recomputed layers.

Every rank of every layout is a fork of one program (`programs/trainer_laws.py`) and talks gloo.
"""

import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

PROGRAMS = Path(__file__).parent / "programs"
PROJECT = Path(__file__).parents[2]
sys.path.insert(0, str(PROGRAMS))

from odd_shapes import SHAPES, UPDATES, control, values  # noqa: E402

pytestmark = pytest.mark.timeout(600)  # of a machine that does other things too
HF = importlib.util.find_spec("transformers") is not None
BITS = ("single-selective", "single-full", *(("gpt2-full",) if HF else ()))
"""Recomputing a layer does the same operations again."""
ROUNDED = (
    "single-ddp2", "single-fsdp2-twice", "single-hsdp4", "single-twice", "single-four",
    "llama-fsdp2", *(("gpt2-fsdp2",) if HF else ()),
)  # fmt: skip
"""Sums of gradients in another order, in fp32."""
ORIGINS = ("single", "bf16", "muon", "llama", *(("gpt2",) if HF else ()))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What all layouts left, and the two groups of ranks without a model of ours."""
    folder = tmp_path_factory.mktemp("laws")
    names = (*ORIGINS, *BITS, *ROUNDED, "bf16-ddp2", "muon-hsdp4", "odd", "broken")
    hidden = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    path = os.pathsep.join(filter(None, (str(PROJECT), os.environ.get("PYTHONPATH"))))
    env |= {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / "trainer_laws.py"), str(folder), *names],
        env=env, capture_output=True, text=True, timeout=580, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    assert done.stdout + done.stderr == "", "a library spoke to the terminal"
    return folder


def tensors(folder: Path, name: str) -> dict[str, dict[str, torch.Tensor]]:
    kept: dict[str, dict[str, torch.Tensor]] = torch.load(folder / f"{name}.pt")
    return kept


def said(folder: Path, name: str) -> dict[str, Any]:
    row: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return row


def origin(name: str) -> str:
    return name.partition("-")[0]


@pytest.mark.parametrize("name", [*BITS, *ROUNDED, "bf16-ddp2", "muon-hsdp4"])
def test_theta0_and_the_windows_do_not_depend_on_the_layout(trained: Path, name: str) -> None:
    ours, theirs = tensors(trained, name)["theta0"], tensors(trained, origin(name))["theta0"]
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[n], t) for n, t in theirs.items())
    for part in ("first", "second"):
        row, expected = said(trained, name)[part], said(trained, origin(name))[part]
        assert (row["drawn"], row["tokens"]) == (expected["drawn"], expected["tokens"])


@pytest.mark.parametrize("name", BITS)
def test_recomputed_activations_change_no_bit(trained: Path, name: str) -> None:
    assert said(trained, name) == said(trained, origin(name))
    ours, theirs = tensors(trained, name), tensors(trained, origin(name))
    for part, expected in theirs.items():
        assert all(torch.equal(ours[part][n], t) for n, t in expected.items()), part


@pytest.mark.parametrize("name", ROUNDED)
def test_losses_gradients_and_parameters_are_those_of_one_rank(trained: Path, name: str) -> None:
    row, expected = said(trained, name), said(trained, origin(name))
    for part in ("first", "second"):
        assert row[part]["losses"] == pytest.approx(expected[part]["losses"], rel=1e-6)
        assert row[part]["loss"] == pytest.approx(expected[part]["loss"], rel=1e-6)
    assert row["held out"] == pytest.approx(expected["held out"], rel=1e-6)
    ours, theirs = tensors(trained, name), tensors(trained, origin(name))
    # The averages of the gradients, which are not clipped here: a gradient that were twice as long
    # would be too (Adam's parameters would not show it).
    for n, t in theirs["state1"].items():
        assert float((ours["state1"][n] - t).norm()) <= 2e-5 * float(t.norm()), n
    for part in ("theta1", "theta2"):  # after 3 and 5 steps of up to 1e-3
        for n, t in theirs[part].items():
            off = (ours[part][n] - t).abs()
            assert float(off.max()) < 1e-5, (part, n)
            assert float(off.mean()) < 5e-7, (part, n)


def test_bf16_on_copies_keeps_fp32_masters(trained: Path) -> None:
    row, expected = said(trained, "bf16-ddp2"), said(trained, "bf16")
    assert row["masters"] == expected["masters"] == ["torch.float32"]
    assert row["first"]["losses"] == pytest.approx(expected["first"]["losses"], rel=5e-4)
    fp32 = said(trained, "single")["first"]["losses"]
    assert expected["first"]["losses"] != fp32
    assert expected["first"]["losses"] == pytest.approx(fp32, rel=5e-4)
    ours, theirs = tensors(trained, "bf16-ddp2")["theta1"], tensors(trained, "bf16")["theta1"]
    for n, t in theirs.items():
        assert float((ours[n] - t).abs().mean()) < 1e-4, n  # three steps of up to 1e-3


def test_muon_on_copies_of_shards_is_muon_on_one_rank(trained: Path) -> None:
    row, expected = said(trained, "muon-hsdp4"), said(trained, "muon")
    assert row["first"]["losses"] == pytest.approx(expected["first"]["losses"], rel=1e-5)
    ours, theirs = tensors(trained, "muon-hsdp4"), tensors(trained, "muon")
    names = [n for n in theirs["state1"] if n.endswith(".momentum_buffer")]
    assert len(names) == 2 * 7  # two layers: q, k, v, o and the three of the feed-forward
    adamw = {n.split(".")[1] for n in theirs["state1"] if n.endswith(".exp_avg")}
    assert {"tok_embeddings", "norm", "layers"} == adamw
    for n, t in theirs["state1"].items():
        assert float((ours["state1"][n] - t).norm()) <= 2e-3 * float(t.norm()), n
    for n, t in theirs["theta1"].items():
        # bf16 inside the iteration: a step of 1e-3 * 0.2 * sqrt(48) an element, to 3 digits
        assert float((ours["theta1"][n] - t).abs().max()) < 1e-4, n
        assert not torch.equal(t, tensors(trained, "single")["theta1"][n])


@pytest.mark.parametrize("name", [*ROUNDED, "bf16-ddp2", "muon-hsdp4"])
def test_the_inner_state_of_one_rank_is_loaded_bit_for_bit(trained: Path, name: str) -> None:
    loaded, written = tensors(trained, name)["loaded"], tensors(trained, origin(name))["state1"]
    assert list(loaded) == list(written)
    assert all(torch.equal(loaded[n], t) for n, t in written.items())


@pytest.mark.skipif(not HF, reason="transformers is not installed (pip install 'pww[hf]')")
def test_a_gpt2_of_transformers_learns(trained: Path) -> None:
    losses = said(trained, "gpt2")["first"]["losses"]
    assert losses[0] == pytest.approx(math.log(256), rel=0.02)  # it knows nothing yet
    assert said(trained, "gpt2")["second"]["losses"][-1] < losses[0] - 0.01


# ------------------------------------------------------------------------------ shapes and faults


@pytest.mark.parametrize("world", [2, 3, 8])
def test_seven_rows_and_two_on_any_number_of_ranks(trained: Path, world: int) -> None:
    """On 8 ranks most have no row of most tensors."""
    one, many = tensors(trained, "odd1"), tensors(trained, f"odd{world}")
    assert {n: tuple(t.shape) for n, t in one["loaded"].items()} == SHAPES
    expected = values(1)
    for name in SHAPES:
        assert torch.equal(many["loaded"][name], expected[name]), name
        assert not torch.equal(many["stepped"][name], expected[name]), name
    for part, theirs in one.items():
        assert all(torch.equal(many[part][n], t) for n, t in theirs.items()), part
    kinds = {n.rpartition(".")[2] for n in one["state"]}
    assert kinds == {"momentum_buffer", "exp_avg", "exp_avg_sq"}


def test_a_thousand_small_outer_steps_add_up_in_a_bf16_model(trained: Path) -> None:
    total = torch.load(trained / "updates.pt")
    assert float((total - UPDATES * 1e-3).abs().max()) < 2e-5  # fp32: 1000 roundings
    assert control() <= 0.5  # where each is added in bf16, most are lost


def test_a_bug_on_one_rank_ends_them_all(trained: Path) -> None:
    codes = json.loads((trained / "broken.json").read_text())
    assert len(codes) == 4
    assert all(code != 0 for code in codes)
    assert "KeyError: 'a bug on rank 1'" in (trained / "broken.err").read_text()
    assert not list(trained.glob("ended*"))
