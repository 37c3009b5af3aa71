"""The trainer on two ranks (FSDP over gloo) against one, and faults that both must learn of."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

PROGRAMS = Path(__file__).parent / "programs"
PROJECT = Path(__file__).parents[2]


def run(scenario: str, folder: Path, *, ranks: int) -> subprocess.CompletedProcess[str]:
    """Runs the program alone or under torchrun."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    program = [str(PROGRAMS / "trainer_ranks.py"), scenario, str(folder)]
    hidden = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    env |= {"PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *(torchrun if ranks > 1 else []), *program],
        env=env, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


def launch(scenario: str, folder: Path, *, ranks: int) -> list[dict[str, Any]]:
    """What each rank wrote down; the program must end well and say nothing."""
    done = run(scenario, folder, ranks=ranks)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert done.stdout + done.stderr == "", "a library spoke to the terminal"
    return [json.loads((folder / f"rank{r}.json").read_text()) for r in range(ranks)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")


@pytest.fixture(scope="module")
def one(folders: tuple[Path, Path]) -> dict[str, Any]:
    return launch("train", folders[0], ranks=1)[0]


@pytest.fixture(scope="module")
def two(folders: tuple[Path, Path]) -> list[dict[str, Any]]:
    return launch("train", folders[1], ranks=2)


def close(one: Path, two: Path) -> None:
    """Equal but for the order of sums: a few elements differ by part of a step of Adam's."""
    a, b = load_file(one), load_file(two)
    assert list(a) == list(b)
    for name, tensor in a.items():
        off = (tensor - b[name]).abs()
        assert float(off.mean()) < 1e-5, name
        assert float(off.max()) < 5e-3, name


def test_theta0_is_the_same_on_any_number_of_ranks(
    one: dict[str, Any], two: list[dict[str, Any]], folders: tuple[Path, Path]
) -> None:
    files = [(folder / "theta0.safetensors").read_bytes() for folder in folders]
    assert files[0] == files[1]
    assert one["layout"] == two[0]["layout"] == two[1]["layout"]


def test_two_ranks_train_like_one(
    one: dict[str, Any], two: list[dict[str, Any]], folders: tuple[Path, Path]
) -> None:
    for name in ("first", "second"):
        expected, got = one[name], two[0][name]
        exact = ("steps", "tokens", "stopped", "drawn", "step")
        assert [got[key] for key in exact] == [expected[key] for key in exact]
        assert got["loss"] == pytest.approx(expected["loss"], rel=1e-4)
        for ours, theirs in zip(got["rows"], expected["rows"], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-4)
        assert two[1][name]["rows"] == []  # rank 0 reports
        assert two[1][name]["drawn"] == []
        for key in ("steps", "tokens", "loss", "stopped", "step"):
            assert two[1][name][key] == got[key]
    assert sorted(one["expected"]) == one["first"]["drawn"]
    assert sorted([*two[0]["expected"], *two[1]["expected"]]) == one["first"]["drawn"]
    assert one["first"]["drawn"] == sorted(one["first"]["drawn"])
    assert len(one["first"]["drawn"]) == 11
    assert (two[0]["second"]["tokens"], len(two[0]["second"]["drawn"])) == (5 * 16, 5)
    for name in ("theta1", "theta2"):
        close(*(folder / f"{name}.safetensors" for folder in folders))


def test_one_window_on_two_ranks_is_one_step_of_both(
    one: dict[str, Any], two: list[dict[str, Any]]
) -> None:
    for got in (one["single"], two[0]["single"]):
        assert (got["steps"], got["tokens"], got["drawn"]) == (1, 16, [77])
    assert two[1]["single"]["steps"] == 1
    assert two[0]["single"]["loss"] == pytest.approx(one["single"]["loss"], rel=1e-3)


def test_held_out_loss_is_the_same_on_any_number_of_ranks(
    one: dict[str, Any], two: list[dict[str, Any]]
) -> None:
    for name, rel in (("before", 1e-6), ("after", 1e-4)):
        assert two[0][name] == two[1][name]
        assert two[0][name][1] == one[name][1] == 11 * 16
        assert two[0][name][0] == pytest.approx(one[name][0], rel=rel)


def test_a_stop_on_one_rank_stops_both_at_one_step(two: list[dict[str, Any]]) -> None:
    for rank in two:
        assert (rank["stop"]["steps"], rank["stop"]["stopped"]) == (2, True)


@pytest.mark.parametrize(("written", "read"), [(1, 2), (2, 1)])
def test_an_inner_state_resumes_on_another_number_of_ranks(
    one: dict[str, Any], two: list[dict[str, Any]], folders: tuple[Path, Path],
    written: int, read: int,
) -> None:  # fmt: skip
    source = folders[written - 1]
    resumed = launch("go_on", source, ranks=read)
    expected = (one if written == 1 else two[0])["second"]
    for rank in resumed:
        assert rank["step"] == 3
        assert rank["second"]["loss"] == pytest.approx(expected["loss"], rel=1e-4)
    close(source / "theta2.safetensors", source / "resumed.safetensors")


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return launch("faults", tmp_path_factory.mktemp("faults"), ranks=2)


def test_faults_reach_both_ranks_and_the_trainer_goes_on(tried: list[dict[str, Any]]) -> None:
    ranks = tried
    expected = {
        "short": ("PayloadError", "missing norm.weight"),
        "torn": ("PayloadError", "torn.safetensors"),
        "absent": ("PayloadError", "is not there"),
        "full": ("CheckpointError", "File too large; free some space"),
        "no state": ("CheckpointError", "no inner state in"),
        "evaluate": ("DataError", "held-out shard 3 is gone"),
    }
    for name, (kind, text) in expected.items():
        assert ranks[0][name] == ranks[1][name], name
        assert ranks[0][name][0] == kind, name
        assert text in ranks[0][name][1], name
    assert ranks[0]["full is complete"] is False
    assert ranks[0]["same"] is True
    assert [rank["goes on"] for rank in ranks] == [3, 3]


def test_what_rank_0_learns_reaches_both(tried: list[dict[str, Any]]) -> None:
    zero, other = tried
    for rank in (zero, other):
        assert rank["value"] == {"from": 0}
        assert rank["waited"] is True
        assert rank["heard"][0] == "rank 0 works"
        assert rank["refused"] == ["Refused", "the run is over", "closed"]
        kind, text, _ = rank["unsendable"]
        assert kind == "TrainerError"
        assert text.startswith("rank 0 could not share its result: cannot pickle")
        assert rank["fault"] == ["PayloadError", "torn on 1", ""]
        assert rank["no fault"][0] == "nothing"
        assert rank["stopped"].startswith("stopped while waiting")
        assert (rank["before"], rank["after"]) == (False, True)
    assert zero["bug"] == ["KeyError", "'a bug'", ""]
    assert other["bug"] == ["TrainerError", "rank 0 failed: KeyError: 'a bug'", ""]
    assert (zero["gather"], other["gather"]) == ([10, 11], [])


def test_a_rank_that_ends_alone_does_not_wait_for_the_others(tmp_path: Path) -> None:
    done = run("alone", tmp_path, ranks=2)
    assert done.returncode != 0
    assert "another rank of this replica is gone; its own last lines say why" in done.stderr
    assert "the other ranks of this replica have not ended" in done.stderr
    assert (tmp_path / "rank1.json").exists()  # it came through close()
