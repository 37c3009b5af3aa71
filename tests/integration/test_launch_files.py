"""The files of launch/: shell that is shell, a builder that refuses, a central as a service."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from conftest import Project

from pww.config import paths

LAUNCH = paths.PROJECT / "launch"


def ran(*words: str, cwd: Path, **env: str) -> "subprocess.CompletedProcess[str]":
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "PWW_"))}
    return subprocess.run(
        ["bash", *words],
        cwd=cwd,
        env={**clean, **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("script", sorted(LAUNCH.rglob("*.sh")), ids=lambda p: p.name)
def test_a_script_is_shell(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)


def test_every_file_is_in_the_readme() -> None:
    text = (LAUNCH / "README.md").read_text()
    for file in LAUNCH.rglob("*.*"):
        if file.name != "README.md" and "__pycache__" not in file.parts:
            assert file.name in text, file


def test_the_container_has_the_torch_that_is_pinned() -> None:
    extra = tomllib.loads((paths.PROJECT / "pyproject.toml").read_text())["project"]
    (torch,) = [x for x in extra["optional-dependencies"]["train"] if x.startswith("torch==")]
    text = (LAUNCH / "lumi" / "pww.def").read_text()
    assert f'"{torch}"' in text
    assert f'startswith("{torch.removeprefix("torch==").removesuffix("*")}")' in text
    for source in re.findall(r"^    (\S+) /opt/pww", text, re.MULTILINE):
        assert (paths.PROJECT / source).exists(), source


def test_the_venv_is_not_built_inside_a_job(tmp_path: Path) -> None:
    said = ran(
        str(LAUNCH / "snellius/build.sh"), str(tmp_path / "v"), cwd=tmp_path, SLURM_JOB_ID="7"
    )
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr == (
        "build: SLURM_JOB_ID=7: this is inside a job; downloads happen on login nodes only: run it "
        "there\n"
    )
    assert not (tmp_path / "v").exists()


@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        (
            "3.9",
            "build: Python 3.9: the ranks of both machines want 3.12; load a module that has it",
        ),
        ("", "build: there is no python3; load a module of Python 3.12"),
    ],
)
def test_the_venv_wants_one_python(tmp_path: Path, version: str, sentence: str) -> None:
    python = tmp_path / "python3"
    python.write_text(f"#!/bin/sh\n[ -n '{version}' ] && echo {version}\n")
    python.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    said = ran(str(LAUNCH / "snellius/build.sh"), str(tmp_path / "v"), cwd=tmp_path, PATH=path)
    assert (said.returncode, said.stderr) == (1, sentence + "\n")


def test_the_venv_wants_a_network(tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.write_text(
        f'#!/bin/sh\n[ "$1" = -c ] && echo 3.12 && exit\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    nowhere = dict.fromkeys(("HTTPS_PROXY", "https_proxy"), "http://127.0.0.1:9")
    said = ran(
        str(LAUNCH / "snellius/build.sh"), str(tmp_path / "v"), cwd=tmp_path, PATH=path, **nowhere
    )
    assert said.returncode == 1
    assert "build: pypi.org cannot be reached from here; run it on a login node" in said.stderr
    assert not (tmp_path / "v").exists()


def test_a_central_without_systemd(project: Project, free_ports: tuple[int, int]) -> None:
    def central(*words: str) -> "subprocess.CompletedProcess[str]":
        folder = project.outputs.parent
        return ran(
            "launch/central/central.sh", *words, cwd=folder, PYTHON=sys.executable,
            PYTHONPATH=str(folder), WANDB_SILENT="true",
        )  # fmt: skip

    assert central("status").returncode == 3
    wrong = central("start", "central.port=abc")
    assert wrong.returncode == 1
    assert "central.port=abc: " in wrong.stderr
    assert "did not start" in wrong.stdout
    ports = ("port", "aggregator_port", "blob_port")
    words = [f"central.{name}={free_ports[0]}" for name in ports]
    # Small: a central that is asked to stop while it prepares a corpus does that first
    (project.folder / "data").mkdir(exist_ok=True)
    lines = (f"line {i} says {i * 7919 % 1000}.\n" for i in range(3000))
    (project.folder / "data" / "little.txt").write_text("".join(lines))
    words += [
        "data=tinyshakespeare", "data.name=little", "data.files=[little.txt]", "data.roots=[data]",
        "data.tokenizer.vocab_size=300", "diloco.inner_steps=2", "model.seq_len=32",
    ]  # fmt: skip
    try:
        assert central("start", *words).returncode == 0
        again = central("start", *words)
        assert (again.returncode, "runs already" in again.stdout) == (1, True)
        assert central("status").returncode == 0
    finally:
        stopped = central("stop")
    assert (stopped.returncode, stopped.stdout) == (0, "central: stopped\n")
    assert central("status").returncode == 3
    assert central("stop").stdout == "central: does not run\n"
    assert central("begin").returncode == 1
