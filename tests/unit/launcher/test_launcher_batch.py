"""The batch scripts of every site and shape, compared whole with files that nothing writes.

A script that changes on purpose is changed by hand in `scripts/`, and read while doing so.
"""

import re
import subprocess
from pathlib import Path

import pytest

from pww.config import paths
from pww.config.load import compose
from pww.config.schema import Slurm
from pww.launcher import batch

SCRIPTS = Path(__file__).parent / "scripts"
SITES = {
    "lumi": ["site=lumi", "site.queue.account=project_1"],
    "snellius": ["site=snellius"],
    "slurm": ["site=slurm", "site.queue.partition=gpu", "site.queue.node_gpus=4"],
}
LUMI_PART = ["site.queue.partition=small-g", "site.queue.exclusive=false"]
SHAPES = {
    "lumi_full_node": [],
    "lumi_part_node": [*LUMI_PART, "site.ranks_per_node=4"],
    "lumi_two_nodes": ["site.queue.partition=standard-g", "site.num_nodes=2"],
    "lumi_one_gpu": [*LUMI_PART, "site.ranks_per_node=1"],
    "snellius_full_node": [],
    "snellius_part_node": ["site.ranks_per_node=2"],
    "snellius_two_nodes": ["site.queue.partition=gpu_a100", "site.num_nodes=2"],
    "snellius_one_gpu": ["site.ranks_per_node=1"],
    "slurm_full_node": ["site.ranks_per_node=4"],
    "slurm_part_node": ["site.ranks_per_node=2"],
    "slurm_two_nodes": ["site.ranks_per_node=4", "site.num_nodes=2"],
    "slurm_one_gpu": ["site.ranks_per_node=1"],
}


def made(shape: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The shape's script, with names in place of what differs between clones and people."""
    monkeypatch.setenv("USER", "someone")
    monkeypatch.delenv("PWW_ACCOUNT", raising=False)
    words = SITES[shape.partition("_")[0]] + SHAPES[shape]
    config = compose([*words, "model=qwen3_0.6b", "run.root=/runs", "run.name=0123"])
    assert isinstance(config.site.queue, Slurm)
    run, code = paths.run_folder(config), Path("/runs/code/0f")
    text = batch.script(config, runs=[run], code=code)
    return text.replace(str(paths.PROJECT), "/clone")


@pytest.mark.parametrize("shape", SHAPES)
def test_a_script_is_as_it_is_written_down(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert made(shape, monkeypatch) == (SCRIPTS / f"{shape}.sh").read_text()


def test_every_script_that_is_written_down_has_its_shape() -> None:
    assert sorted(p.stem for p in SCRIPTS.iterdir()) == sorted(SHAPES)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_script_is_shell_and_agrees_with_itself(shape: str) -> None:
    """What holds of every shape, whatever the site: laws, read from the files alone."""
    text = (SCRIPTS / f"{shape}.sh").read_text()
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(.*))?$", text, re.MULTILINE))
    (step,) = [line for line in text.splitlines() if line.startswith("srun ")]
    assert text.index("\nrun=") < text.index("\ncd /clone") < text.index("\nsrun ")
    assert text.index("\nsrun ") < text.index("\nstatus=$?\n") < text.index("scontrol requeue")
    assert "requeue" in asked
    ranks = int(asked["ntasks-per-node"])
    assert asked["gpus-per-node"] == asked["ntasks-per-node"]
    assert f"--cpus-per-task={asked['cpus-per-task']} " in step
    assert f"export OMP_NUM_THREADS={asked['cpus-per-task']}\n" in text
    assert "--kill-on-bad-exit=1 " in step
    assert step.endswith(' -m pww.worker "$run"')
    assert "\nruns=(/runs/0123)\n" in text
    assert asked["job-name"] == "pww-0123"
    assert "MASTER_PORT" not in text
    masks = re.search(r"--cpu-bind=mask_cpu:(\S+)", step)
    assert (masks is not None) == (shape in ("lumi_full_node", "lumi_two_nodes"))
    if masks is not None:
        assert len(masks[1].split(",")) == ranks == 8
    assert ("mem" in asked) == shape.startswith("lumi")
