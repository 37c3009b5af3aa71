"""Slurm's commands as we call them: the environment, and what is said when they fail."""

import os
from pathlib import Path

import pytest

from pww.errors import StateError
from pww.launcher import slurm


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """say("sbatch", "text") makes a command of that name that prints the text."""

    def make(name: str, text: str, *, code: int = 0, err: str = "") -> None:
        script = tmp_path / name
        script.write_text(
            f"#!/bin/bash\ncat <<'END'\n{text}\nEND\necho -n '{err}' >&2\nexit {code}\n"
        )
        script.chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return make


def test_what_belongs_to_another_job_does_not_pass() -> None:
    foreign = [
        "SLURM_CPU_BIND", "SLURM_CPUS_PER_TASK", "SLURM_MEM_PER_CPU", "SLURM_JOB_ID", "RANK",
        "SBATCH_ACCOUNT", "PMIX_RANK", "PMI_FD", "SRUN_DEBUG", "SUBMITIT_EXECUTOR", "MASTER_PORT",
        "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "SQUEUE_STATES", "SINFO_PARTITION",
    ]  # fmt: skip
    own = {"PATH": "/bin", "SLURM_CONF": "/etc/slurm.conf", "MY_SLURM_X": "1", "HF_TOKEN": "t"}
    assert slurm.scrubbed({**dict.fromkeys(foreign, "x"), **own}) == own


def test_the_id_of_a_job(say, tmp_path: Path) -> None:
    say("sbatch", "Submitted batch job 4711 on cluster lumi")
    assert slurm.sbatch(tmp_path / "x.sh") == "4711"
    say("sbatch", "thank you")
    with pytest.raises(StateError, match=r"^sbatch answered 'thank you', which names no job; "):
        slurm.sbatch(tmp_path / "x.sh")


def test_what_is_queued(say) -> None:
    say("squeue", "12 N/A\n13 0\n13 7")
    assert slurm.queued() == {"12", "13_0", "13_7"}
    say("squeue", "", err="a warning")
    assert slurm.queued() == set()


def test_the_longest_array(say) -> None:
    say("scontrol", "Mail = x\nMaxArraySize            = 1001\nMaxJobCount = 3")
    assert slurm.longest_array() == 1001
    say("scontrol", "MaxArraySize = 0")
    assert slurm.longest_array() == 1


def test_slurm_says_no(say, tmp_path: Path) -> None:
    say("sbatch", "", code=1, err="sbatch: error: invalid account")
    with pytest.raises(StateError, match=r"sbatch .*x\.sh failed: sbatch: error: invalid account"):
        slurm.sbatch(tmp_path / "x.sh")
    say("squeue", "", code=3)
    with pytest.raises(StateError, match=r"^squeue --me .* failed: exit code 3$"):
        slurm.queued()


def test_slurm_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StateError, match=r"^squeue: not on PATH; submit on a login node"):
        slurm.queued()


def test_slurm_does_not_answer(say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "squeue").write_text("#!/bin/bash\nexec sleep 60\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setattr(slurm, "ANSWER_S", 0.1)
    with pytest.raises(StateError, match=r"^squeue: no answer in 0\.1 s; look with"):
        slurm.queued()
