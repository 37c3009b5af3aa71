"""The command line itself, as real processes: exit codes, nothing written, no torch."""

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pww.clock import ManualClock
from pww.config import paths
from pww.config.load import compose
from pww.launcher import runs


def command(*words: str, module: str = "pww.train", flags: tuple[str, ...] = ()) -> list[str]:
    return [sys.executable, *flags, "-m", module, *words]


def run(
    *words: str, cwd: Path, flags: tuple[str, ...] = (), module: str = "pww.train"
) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "PYTHONPATH": str(paths.PROJECT)}
    for name in [n for n in env if n.startswith("PWW_")]:
        del env[name]
    return subprocess.run(
        command(*words, flags=flags, module=module),
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def files(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*"))


def outputs() -> list[str]:
    return sorted(p.name for p in (paths.PROJECT / "outputs").glob("*"))


def test_faults_end_in_sentences_exit_2_and_nothing_made(tmp_path: Path) -> None:
    before = outputs()
    result = run(
        f"run.root={tmp_path}/runs",
        "sit=lumi",
        "diloco.inner_steps=abc",
        "+diloco.foo=3",
        "parallel.ranks=2",
        "optim.batch_windows=3",
        "resume=nowhere",
        cwd=tmp_path,
    )
    assert result.returncode == 2
    assert result.stdout == ""
    keys = [line.partition(":")[0] for line in result.stderr.splitlines()]
    assert sorted(keys) == [
        "diloco.foo=3",
        "diloco.inner_steps=abc",
        "optim.batch_windows=3",
        "resume=nowhere",
        "sit=lumi",
    ]
    assert files(tmp_path) == []
    assert outputs() == before


def test_a_bad_job_stops_the_whole_sweep(tmp_path: Path) -> None:
    result = run("-m", "seed=1,abc", f"run.root={tmp_path}/runs", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr == "seed=abc: a whole number, 0 or more, less than 2147483648\n"
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    ("module", "words"),
    [("pww.train", ("--cfg", "job")), ("pww.train", ("--help",)), ("pww.smoke", ("--help",))],
)
def test_answers_fast_and_without_torch(
    module: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    """Processor time, not the clock's: other processes share this machine."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = run(*words, cwd=tmp_path, module=module)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert result.returncode == 0, result.stderr
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert spent < 1.5
    imported = run(*words, cwd=tmp_path, module=module, flags=("-X", "importtime")).stderr
    modules = {line.rpartition("|")[2].strip() for line in imported.splitlines()}
    assert "hydra" in modules
    assert not modules & {"torch", "torchtitan", "wandb", "flwr", "submitit", "numpy"}
    assert files(tmp_path) == []


@pytest.mark.parametrize("words", [("--cfg", "job"), ("--help",), ("--info",), ("dry=true",)])
def test_a_reader_that_has_read_enough_is_no_fault(words: tuple[str, ...], tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    env = {**os.environ, "PYTHONPATH": str(paths.PROJECT)}
    result = subprocess.run(
        command(*words), cwd=tmp_path, env=env, stdout=writer, stderr=subprocess.PIPE, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    os.close(writer)
    assert (result.returncode, result.stderr) == (0, "")


def test_info_tells_everything(tmp_path: Path) -> None:
    result = run("--info", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert "Defaults Tree" in result.stdout


def test_cfg_is_yaml_of_every_group(tmp_path: Path) -> None:
    result = run("--cfg", "job", "diloco.inner_steps=50", cwd=tmp_path)
    values = yaml.safe_load(result.stdout)
    assert values["diloco"]["inner_steps"] == 50
    assert set(values) >= {"site", "model", "parallel", "diloco", "darl", "transport", "data"}
    assert result.stderr == ""


def test_cfg_and_help_explain_faults_too(tmp_path: Path) -> None:
    for words in (("--cfg", "job"), ("--help",), ("--info", "config")):
        result = run(*words, "sit=lumi", cwd=tmp_path)
        assert result.returncode == 2
        assert result.stderr.startswith("sit=lumi: no such key or group; there are central, ")
        assert result.stderr.count("\n") == 1


def test_help_explains_the_program(tmp_path: Path) -> None:
    text = run("--help", cwd=tmp_path).stdout
    assert text.startswith("python -m pww.train [group=choice ...] [key=value ...] [-m]\n")
    assert "site: local, lumi, slurm, snellius\n" in text
    assert "data/tokenizer: bpe, file\n" in text
    assert "  inner_steps: 100\n" in text
    assert "resume=auto" in text


def script_of(*words: str, cwd: Path) -> tuple[str, str]:
    before = outputs()
    result = run(*words, "dry=true", cwd=cwd)
    assert result.returncode == 0, result.stderr
    assert files(cwd) == []
    assert outputs() == before
    checked = subprocess.run(
        ["bash", "-n"], input=result.stdout, text=True, capture_output=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
    return result.stdout, result.stderr


def options(script: str) -> dict[str, str]:
    found = re.findall(r"^#SBATCH --([\w-]+)(?:=(.*))?$", script, re.MULTILINE)
    return dict(found)


def srun(script: str) -> str:
    (line,) = [x for x in script.splitlines() if x.startswith("srun ")]
    return line


def test_dry_at_lumi_shows_a_full_node_with_its_masks(tmp_path: Path) -> None:
    script, said = script_of("site=lumi", "site.queue.account=project_1", cwd=tmp_path)
    wanted = {
        "partition": "dev-g",
        "account": "project_1",
        "nodes": "1",
        "ntasks-per-node": "8",
        "gpus-per-node": "8",
        "cpus-per-task": "7",
        "mem": "0",
        "time": "01:00:00",
        "exclusive": "",
        "signal": "USR2@120",
    }
    assert wanted.items() <= options(script).items()
    line = srun(script)
    assert (
        "--cpu-bind=mask_cpu:0xfe000000000000,0xfe00000000000000,0xfe0000,0xfe000000,0xfe,0xfe00,"
        "0xfe00000000,0xfe0000000000 " in line
    )
    assert "--cpus-per-task=7 " in line
    assert "--kill-on-bad-exit=1 " in line
    assert "bash launch/site/lumi.sh singularity exec /scratch/project_1/" in line
    assert line.endswith(' -m pww.worker "$run"')
    assert re.search(r"^runs=\(\S+/outputs/\d{8}-\d{6}\)$", script, re.MULTILINE)
    assert "export NCCL_SOCKET_IFNAME=hsn\n" in script
    assert "export OMP_NUM_THREADS=7\n" in script
    assert said == (
        "dry: nothing was queued. lumi, partition dev-g, 1 node(s) x 8 ranks = 8 ranks, 7 cores "
        "each, time 01:00:00, account project_1\n"
    )


def test_dry_at_lumi_binds_a_part_of_a_node_without_masks(tmp_path: Path) -> None:
    script, _ = script_of(
        "site=lumi",
        "site.queue.partition=small-g",
        "site.ranks_per_node=2",
        "site.queue.exclusive=false",
        cwd=tmp_path,
    )
    assert options(script)["gpus-per-node"] == "2"
    assert "exclusive" not in options(script)
    assert "--cpu-bind=cores " in srun(script)


def test_dry_at_snellius(tmp_path: Path) -> None:
    script, said = script_of(
        "site=snellius", "site.num_nodes=2", "site.queue.partition=gpu_a100", cwd=tmp_path
    )
    found = options(script)
    wanted = {
        "partition": "gpu_a100",
        "nodes": "2",
        "ntasks-per-node": "4",
        "gpus-per-node": "4",
        "cpus-per-task": "18",
    }
    assert wanted.items() <= found.items()
    assert not {"mem", "account", "exclusive"} & set(found)
    line = srun(script)
    assert "--cpu-bind=cores " in line
    assert "--distribution=block:block " in line
    assert "$HOME/venvs/pww/bin/python -m pww.worker " in line
    assert "account the scheduler's default (site.queue.account=…, or PWW_ACCOUNT)" in said


def test_dry_sweeps_show_every_script(tmp_path: Path) -> None:
    result = run("site=lumi,snellius", "-m", "dry=true", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("#!/bin/bash") == 2
    assert files(tmp_path) == []


def test_dry_without_a_queue_says_what_would_be_started(tmp_path: Path) -> None:
    result = run("dry=true", f"run.root={tmp_path}/runs", "replica=b", cwd=tmp_path)
    assert result.returncode == 0
    assert result.stdout == (
        "dry: nothing was started. local/b, 1 rank(s), would make its folder in runs and train on "
        "pydocs here\n"
    )
    assert files(tmp_path) == []


def test_dry_says_which_run_would_go_on(tmp_path: Path) -> None:
    config, folder = runs.claim(compose([f"run.root={tmp_path}/runs"]), ManualClock())
    (folder / "checkpoints").mkdir()
    before = (folder / "config.yaml").read_bytes()
    for resume in ("auto", str(folder)):
        result = run("dry=true", f"run.root={tmp_path}/runs", f"resume={resume}", cwd=tmp_path)
        assert result.stdout == (
            "dry: nothing was started. local/a, 1 rank(s), would go on in "
            f"runs/{config.run.name} and train on pydocs here\n"
        )
    assert (folder / "config.yaml").read_bytes() == before


def test_submitting_where_there_is_no_slurm(tmp_path: Path, monkeypatch) -> None:
    """Never trains here instead; and nothing is made before it is known."""
    monkeypatch.setenv("PATH", str(tmp_path))
    words = ("site=lumi", "site.queue.account=project_1", f"run.root={tmp_path}/runs")
    result = run(*words, cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr == (
        "scontrol: not on PATH; submit on a login node of the site, or load its module\n"
    )
    assert files(tmp_path) == []


def test_submitting_without_the_project_that_pays(tmp_path: Path) -> None:
    result = run("site=lumi", f"run.root={tmp_path}/runs", cwd=tmp_path)
    assert result.returncode == 2
    assert re.match(r"site\.scratch=/scratch//\w+: has an empty part; give site\.queue\.account=…",
                    result.stderr)  # fmt: skip
    assert files(tmp_path) == []


def test_a_sweep_over_a_queue_and_none_is_refused(tmp_path: Path) -> None:
    result = run("site=snellius,local", f"run.root={tmp_path}/runs", "-m", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr == (
        "site=snellius,local: the one has a queue and the other has none; start them with two "
        "commands\n"
    )
    assert files(tmp_path) == []


def test_the_scripts_of_launch_are_shell() -> None:
    for script in sorted((paths.PROJECT / "launch" / "site").glob("*.sh")):
        subprocess.run(["bash", "-n", str(script)], check=True)


def test_every_rank_on_lumi_has_its_own_cache(tmp_path: Path) -> None:
    seen = set()
    for rank in ("0", "1"):
        env = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": f"t{os.getpid()}", "SLURM_PROCID": rank}
        result = subprocess.run(
            ["bash", "launch/site/lumi.sh", "printenv", "MIOPEN_USER_DB_PATH"],
            cwd=paths.PROJECT,
            env=env,
            capture_output=True,
            text=True,
            check=True,
        )
        folder = Path(result.stdout.strip())
        assert folder.is_dir()
        folder.rmdir()
        seen.add(folder)
    assert len(seen) == 2
