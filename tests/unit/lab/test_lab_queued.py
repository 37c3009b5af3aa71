"""Cells as jobs of a queue: what they ask of each site, what is refused, what a job does."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pww.clock import ManualClock
from pww.config import paths
from pww.config.prepare import LAB, prepare
from pww.config.schema.lab import LabConfig
from pww.errors import ConfigError, InUse, StateError
from pww.folder import owned
from pww.lab import app, queued, worker
from pww.lab.job import Job
from pww.lab.records import read_run
from pww.lab.study import read_study
from pww.launcher import arrays, batch, slurm
from pww.log import JsonLines

SLURM = ("site=slurm", "site.queue.partition=cpu")
QUADRATIC = ("task=quadratic", "lab.steps=200", "lab.eval_every=100", "task.chains=2")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where runs land; its queue is empty."""
    monkeypatch.setattr(paths, "PROJECT", tmp_path)
    monkeypatch.setattr(slurm, "queued", set)
    monkeypatch.setattr(slurm, "longest_array", lambda: 1000)
    return tmp_path


def study(project: Path) -> Path:
    return project / "outputs" / "lab" / "study"


def cells(*words: str) -> list[Job]:
    made = app.App()
    prepare(words, shape=LAB, refine=made.settle, multirun=True)
    return made._jobs


def noted(job: Job, number: str) -> None:
    """As a launch that queued it notes it."""
    job.root.mkdir(parents=True)
    log = JsonLines(job.root / arrays.JOBS)
    log.write({"job": number, "folder": str(job.folder), "runs": job.left})
    log.close()


def composed(*words: str) -> LabConfig:
    made = prepare(words, shape=LAB).configs[0]
    assert isinstance(made, LabConfig)
    return made


@pytest.mark.parametrize(
    ("words", "cores", "gpus", "memory"),
    [
        (SLURM, 1, 0, ""),
        ((*SLURM, "site.cores_per_rank=8"), 8, 0, ""),
        (("site=snellius",), 16, 1, ""),
        (("site=snellius", "site.queue.partition=gpu_a100"), 18, 1, ""),
        (("site=lumi", "site.queue.account=project_1"), 7, 1, "60G"),
    ],
)
def test_a_cell_is_a_part_of_a_node_and_its_threads_are_its_cores(
    words: tuple[str, ...], cores: int, gpus: int, memory: str
) -> None:
    config = composed(*words)
    site, queue = config.site, config.site.queue
    assert queue.kind == "slurm"
    assert (site.num_nodes, site.ranks_per_node, site.cores_per_rank) == (1, 1, cores)
    assert (config.lab.threads, queue.gpus_per_node, queue.memory) == (cores, gpus, memory)
    assert not queue.exclusive
    text = batch.script(config, runs=[Path("/x")], code=Path("/c"), program=queued.PROGRAM)
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    assert f"#SBATCH --cpus-per-task={cores}\n" in text
    assert f"export OMP_NUM_THREADS={cores}\n" in text
    assert ("--gpus-per-node" in text) == bool(gpus)
    assert ("#SBATCH --mem=60G\n" in text) == bool(memory)
    assert ' -m pww.lab.worker "$run"\n' in text
    assert "resume=" not in text


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((*SLURM, "site.name=mine", "site.queue.gpus_per_node=1"), True),
        (SLURM, False),
        (("site=snellius",), False),  # its partitions give no cores without a GPU
    ],
)
def test_gpus_that_the_lab_could_do_without_are_said(
    words: tuple[str, ...], told: bool, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = app.App()
    prepare((*words, *QUADRATIC, "dry=true"), shape=LAB, refine=made.settle)
    made.queue([job.config for job in made._jobs])
    text = capsys.readouterr().err
    sentence = "give site.queue.gpus_per_node=0, or write it into conf/cell/mine.yaml"
    assert (sentence in text) == told
    assert ("each cell asks for 1 GPU" in text) == told


def test_here_nothing_has_changed() -> None:
    config = composed()
    assert (config.site.name, config.site.queue.kind, config.lab.threads) == ("local", "none", 1)
    assert composed("lab.threads=3").lab.threads == 3


REFUSED = {
    (*SLURM, "site.num_nodes=2", "lab.threads=3", "site.device=cpu", "site.outbound=all"): (
        "site.num_nodes=2, site.ranks_per_node=1: a cell is one process; use 1 for both",
        "lab.threads=3: its job has site.cores_per_rank=1 cores; use at most that many",
        "site.device: a cell is one process that computes on cores and meets nobody; leave it out",
        "site.outbound: a cell is one process",
    ),
    (*SLURM, "site.queue.gpus_per_node=2"): (
        "site.queue.gpus_per_node=2: one GPU a rank, and site.ranks_per_node=1; leave it out",
    ),
    ("site=snellius", "site.queue.gpus_per_node=0", "site.queue.time='200:00:00'"): (
        "site.queue.gpus_per_node=0: gpu_h100 gives cores with a GPU; use 1",
        "site.queue.time=200:00:00: gpu_h100 ends a job after 120 h; give at most that",
    ),
    ("site=lumi", "site.queue.partition=standard-g"): (
        "site.queue.partition=standard-g: has whole nodes only",
        "site.scratch=/scratch//",
    ),
    ("launcher.wait=true", "launcher.requeues=1"): (
        "launcher.wait: site=local has no queue; leave it out", "launcher.requeues: site=local",
    ),
    ("site=slurm",): ("site.queue.partition: has no value yet",),
    (*SLURM, "cell=lumi"): ("cell: goes with the site by itself; leave it out",),
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED, ids=range(len(REFUSED)))
def test_what_a_cell_cannot_ask(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PWW_ACCOUNT", raising=False)
    with pytest.raises(ConfigError) as refused:
        cells(*words)
    told = "\n".join(refused.value.faults)
    assert [said for said in REFUSED[words] if said not in told] == []


def test_a_run_still_refuses_an_allocation_without_gpus() -> None:
    with pytest.raises(ConfigError, match=r"^site\.queue\.gpus_per_node=0: one GPU a rank, and"):
        prepare([*SLURM, "site.ranks_per_node=1", "site.queue.gpus_per_node=0"])


def test_a_sweeper_that_chooses_as_it_goes_is_for_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pww.config.prepare._sweeper", lambda overrides: "chooser")
    assert app.start([*SLURM, "codec=fp32,int4", "-m"]) == 2
    assert "hydra/sweeper=chooser: chooses its jobs as it goes, which only pww.train at" in (
        capsys.readouterr().err
    )


def test_dry_prints_one_array_of_what_is_left_and_starts_nothing(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = [*QUADRATIC, "codec=fp32,randomk", "merge=mean,median", "-m"]
    assert app.start([*SLURM, *grid, "lab.tune.lr=[0.1,0.2]", "lab.seeds=2", "dry=true"]) == 0
    said = capsys.readouterr()
    assert said.out.count("#!/bin/bash\n") == 1
    assert "#SBATCH --array=0-3%4\n" in said.out
    (listed,) = [line for line in said.out.splitlines() if line.startswith("runs=(")]
    assert listed.count("/outputs/lab/study/jobs/codec=") == 4
    assert "dry: nothing was queued. slurm, partition cpu, an array of 4 jobs" in said.err
    assert list(project.iterdir()) == []

    sweeps = f"hydra.sweep.dir={project / 'sweeps'}"
    assert app.start([*QUADRATIC, "codec=fp32", "merge=mean,median", "-m", sweeps]) == 0
    capsys.readouterr()
    before = sorted(study(project).rglob("*"))
    assert app.start([*SLURM, *grid, "dry=true"]) == 0
    said = capsys.readouterr()
    assert "#SBATCH --array=0-1%2\n" in said.out
    assert "dry: 2 more cell(s) are there or in the queue already" in said.err
    assert sorted(study(project).rglob("*")) == before


def test_cells_that_are_all_there_need_no_queue(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing of Slurm is asked, and a cell is told as it is here."""
    words = [*QUADRATIC, "lab.tune.lr=[0.1,0.2]"]
    assert app.start(words) == 0
    told = capsys.readouterr().out
    assert app.start([*SLURM, *words]) == 0
    assert capsys.readouterr().out == told
    assert not (study(project) / "jobs").exists()


def test_two_jobs_never_make_one_run(project: Path) -> None:
    jobs = cells(*SLURM, *QUADRATIC, "lab.seeds=1,2")
    with pytest.raises(ConfigError) as refused:
        queued.queue(jobs, clock=ManualClock())
    (sentence,) = refused.value.faults
    assert sentence.startswith(str(study(project)))
    assert sentence.endswith("-s0: several jobs would make this run at once; start one")
    # Seeds of their own are jobs of their own
    seeds = cells(*SLURM, *QUADRATIC, "seed=0,1")
    assert len({job.folder for job in seeds}) == 2
    queued._a_run_once(seeds)


def test_some_dry_and_some_not(project: Path) -> None:
    with pytest.raises(ConfigError, match=r"^dry=true,false: some jobs would be queued; give one"):
        queued.queue(
            [*cells(*SLURM, *QUADRATIC, "dry=true"), *cells(*SLURM, *QUADRATIC, "seed=1")],
            clock=ManualClock(),
        )


def test_what_a_job_in_the_queue_makes_is_left_to_it(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = cells(*SLURM, *QUADRATIC)
    noted(job, "7_1")
    monkeypatch.setattr(slurm, "queued", lambda: {"7_1"})
    assert queued._not_in_the_queue([job]) == []
    assert capsys.readouterr().out.endswith(": job 7_1 in the queue makes it\n")
    (more,) = cells(*SLURM, *QUADRATIC, "lab.seeds=2")
    with pytest.raises(ConfigError, match=r"job 7_1 in the queue makes some of its runs; scancel"):
        queued._not_in_the_queue([more])
    monkeypatch.setattr(slurm, "queued", set)
    assert queued._not_in_the_queue([job]) == [job]
    said = capsys.readouterr().err
    assert said.startswith("job 7_1 ended before its cell was done; its last lines are in ")
    assert said.endswith("/slurm/7_1_*.log, and the same command goes on\n")


def test_a_job_is_known_by_any_way_to_its_folder(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = cells(*SLURM, *QUADRATIC)
    noted(job, "7")
    (project / "scratch").symlink_to(project / "outputs" / "lab")
    monkeypatch.setattr(slurm, "queued", lambda: {"7"})
    assert queued._not_in_the_queue(cells(*SLURM, *QUADRATIC, "lab.root=scratch")) == []


def test_of_two_launches_at_once_one_waits(project: Path) -> None:
    """Both would find the queue empty, and queue the same cell."""
    (job,) = cells(*SLURM, *QUADRATIC)
    with owned(job.root, remedy="-"):
        with pytest.raises(InUse, match="another launch queues jobs there; wait for it"):
            queued.queue([job], clock=ManualClock())
        assert not job.folder.exists()


def test_a_job_that_died_is_done_once_its_runs_are_made(project: Path) -> None:
    (job,) = cells(*SLURM, *QUADRATIC)
    job.write()
    (job.folder / "slurm").mkdir()
    made = job.study / job.plan[0].name
    made.mkdir()
    (made / "metrics.jsonl").touch()
    assert read_study(job.study).jobs == (f"jobs/{job.folder.name}",)
    assert app.start(QUADRATIC) == 0
    assert read_study(job.study).jobs == ()


def test_a_folder_that_cannot_be_made(project: Path) -> None:
    (job,) = cells(*SLURM, *QUADRATIC)
    job.study.mkdir(parents=True)
    job.root.touch()
    with pytest.raises(StateError, match=r"cannot make the job's folder .*; make room, or give"):
        queued._claim(job)


def test_a_study_goes_to_the_queue_line_by_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pww.lab import reporting

    lines: list[tuple[str, ...]] = []

    def run(words: tuple[str, ...]) -> int:
        lines.append(words)
        return 0

    monkeypatch.setattr(reporting, "_run", run)
    assert reporting.start(["study", "first", *SLURM]) == 0
    assert [set(SLURM) < set(line) for line in lines] == [True, True]
    told = "when the jobs have ended: python -m pww.lab report study=first\n"
    assert capsys.readouterr().err == told
    assert reporting._is_queued(["site=lumi"])
    for here in ([], ["site=local"], ["site=lumi", "site=local"]):
        assert not reporting._is_queued(here)
    for waits in ("true", "True"):
        assert not reporting._is_queued(["site=lumi", f"launcher.wait={waits}"])


def test_a_job_is_what_was_submitted(project: Path) -> None:
    words = "method.worker_steps=[10,2]", "workers=2", "lab.tune.lr=[0.001,0.1]", "codec.keep=64"
    (job,) = cells(*SLURM, *words, "codec=topk", "lab.seeds=3")
    job.write()
    assert Job.read(job.folder) == job
    assert [one.name for one in job.plan] == job.left


def test_a_job_makes_its_runs_without_torch_and_stands_beside_those_made_here(
    project: Path,
) -> None:
    (job,) = cells(*SLURM, *QUADRATIC, "lab.seeds=2")
    job.write()
    code = (
        "import sys; from pathlib import Path; from pww.config import paths; from pww.lab import "
        "worker; paths.PROJECT = Path(sys.argv[1]); code = worker.main(sys.argv[2:]); "
        "sys.exit(9 if 'torch' in sys.modules else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(project), str(job.folder)], capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (job.folder / "finished").read_text() == done.stdout
    assert app.start([*QUADRATIC, "seed=2"]) == 0
    found = read_study(job.study)
    assert (len(found.runs), found.faults, found.jobs) == (3, (), ())
    assert len({run.result.id for run in found.runs}) == 1, "one cell"
    assert found.runs[0].config.keys() == found.runs[2].config.keys()


def test_a_job_ends_with_a_sentence(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert worker.main([str(project)]) == 2
    assert "usage: python -m pww.lab.worker JOB" in capsys.readouterr().err
    (job,) = cells(*SLURM, *QUADRATIC)
    job.write()
    run = job.study / job.plan[0].name
    assert worker.main([str(job.folder)]) == 0
    (run / "result.json").write_text("{")
    assert worker.main([str(job.folder)]) == 1
    assert "result.json: is damaged" in capsys.readouterr().err

    def full(*args: object, **more: object) -> str:
        raise OSError("No space left on device")

    monkeypatch.setattr(Job, "carry_out", full)
    assert worker.main([str(job.folder)]) == 1
    assert "the cell cannot go on: No space left on device; make room" in capsys.readouterr().err


def test_the_queues_signal_ends_a_job_that_goes_on_if_it_got_anywhere(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the signal itself, in the second of two runs, and then in the first one."""
    (job,) = cells(*SLURM, *QUADRATIC, "lab.seeds=2")
    job.write()
    from pww.lab import one

    true, made = one._train, []

    def train(*args: object, **more: object) -> object:
        made.append(1)
        if len(made) >= 2:
            os.kill(os.getpid(), signal.SIGUSR2)
        return true(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(one, "_train", train)
    assert worker.main([str(job.folder)]) == 130
    assert "the time is over: 1 of 2 runs are left" in capsys.readouterr().err
    (job.folder / paths.REQUEUE).unlink()
    assert worker.main([str(job.folder)]) == 1
    told = "not one run was finished in site.queue.time=01:00:00; give more"
    assert told in " ".join(capsys.readouterr().err.split())
    assert not (job.folder / paths.REQUEUE).exists()
    monkeypatch.setattr(one, "_train", true)
    assert worker.main([str(job.folder)]) == 0
    assert read_run(job.study / job.plan[1].name).result.seed == 1
