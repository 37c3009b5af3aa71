"""Bootstrap: made once, found right again, and nothing of a person's is ever moved."""

import os
from pathlib import Path

import pytest

from pww import launch
from pww.config import paths
from pww.config.load import compose
from pww.config.schema import Config
from pww.errors import ConfigError, StateError
from pww.launcher.bootstrap import bootstrap, lacking


def at(scratch: object, site: str = "snellius") -> Config:
    return compose([f"site={site}", f"site.scratch={scratch}"])


def tree(folder: Path) -> list[tuple[str, str]]:
    every = sorted(folder.rglob("*"))
    return [(str(p.relative_to(folder)), os.readlink(p) if p.is_symlink() else "") for p in every]


def clone(folder: Path) -> Path:
    (folder / "clone" / "outputs").mkdir(parents=True)
    return folder / "clone"


def test_links_lead_to_scratch_and_a_second_run_changes_nothing(tmp_path: Path) -> None:
    project, scratch = clone(tmp_path), tmp_path / "scratch"
    steps = list(bootstrap(at(scratch), project=project))
    assert [step.done for step in steps] == [True] * 4
    for name in ("data", "outputs"):
        assert (project / name).readlink() == scratch / "pww" / name
        assert (project / name).is_dir()
    (project / "outputs" / "run").mkdir()
    before = tree(tmp_path)
    again = list(bootstrap(at(scratch), project=project))
    assert [step.done for step in again] == [False] * 4
    assert tree(tmp_path) == before


def test_without_scratch_they_are_folders_of_the_clone(tmp_path: Path) -> None:
    for done in (True, False):
        steps = list(bootstrap(at("none", site="local"), project=tmp_path))
        assert [step.done for step in steps] == [done] * 2
    assert tree(tmp_path) == [("data", ""), ("outputs", "")]


def test_what_is_in_the_way_stays_and_nothing_is_made(tmp_path: Path) -> None:
    project, scratch = clone(tmp_path), tmp_path / "scratch"
    (project / "outputs" / "run").mkdir()
    (project / "data").symlink_to("/elsewhere")
    before = tree(tmp_path)
    with pytest.raises(ConfigError) as refused:
        list(bootstrap(at(scratch), project=project))
    assert list(refused.value.faults) == [
        f"{project}/data: is a link to /elsewhere, and site.scratch wants {scratch}/pww/data; "
        "remove the link, or give the site.scratch that it was made for",
        f"{project}/outputs: holds 1 file(s) or folder(s) such as run; move them to "
        f"{scratch}/pww/outputs and run this again",
    ]
    assert tree(tmp_path) == before


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(ConfigError) as refused:
        list(bootstrap(at(tmp_path / "scratch"), project=tmp_path))
    assert list(refused.value.faults) == [f"{tmp_path}/data: is a file; remove it"]


def test_a_site_without_its_account_has_no_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PWW_ACCOUNT", raising=False)
    monkeypatch.setenv("USER", "someone")
    with pytest.raises(ConfigError, match=r"^site.scratch=/scratch//someone: has an empty part; "):
        list(bootstrap(compose(["site=lumi"]), project=tmp_path))


def test_a_scratch_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "scratch").write_text("")
    with pytest.raises(StateError, match=r"pww/data cannot be made: .*; make room, or give site"):
        list(bootstrap(at(tmp_path / "scratch"), project=tmp_path))


def test_a_link_that_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"nowhere/data cannot be made a link to .*No such file"):
        list(bootstrap(at(tmp_path / "scratch"), project=tmp_path / "nowhere"))


def test_what_a_job_would_miss(tmp_path: Path) -> None:
    python = tmp_path / "python"
    config = compose(["site=snellius", f"site.queue.python={python}"])
    said = lacking(config, environ={"PATH": str(tmp_path), "SLURM_JOB_ID": "7"})
    assert said == [
        *(
            f"{name}: not on PATH; run this on a login node of snellius, or load its module"
            for name in ("sbatch", "srun", "squeue", "scancel")
        ),
        "SLURM_JOB_ID=7: this is inside a job; prepare and submit on a login node, where downloads "
        "are possible",
        f"{python}: site.queue.python needs it, and it does not exist; launch/README.md says how "
        "it is built",
    ]
    for name in ("sbatch", "srun", "squeue", "scancel", "python"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    assert lacking(config, environ={"PATH": str(tmp_path)}) == []
    assert lacking(compose([]), environ={}) == []


def test_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(paths, "PROJECT", tmp_path)
    assert launch.main(["bootstrap", "site=local"]) == 0
    assert capsys.readouterr().out.endswith("outputs: made\nlocal: ready\n")
    monkeypatch.setenv("PATH", "")
    words = ["bootstrap", "site=slurm", "site.queue.partition=gpu", "site.ranks_per_node=4"]
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert launch.main(words) == 1
    said = capsys.readouterr()
    assert said.out.endswith("outputs: there\nslurm: 4 thing(s) missing\n")
    assert said.err.startswith("sbatch: not on PATH; run this on a login node of slurm, or load ")
    (tmp_path / "outputs" / "run").mkdir()
    assert launch.main([*words, f"site.scratch={tmp_path}/s"]) == 2
    assert launch.main(["boot"]) == 2
    assert "boot: no such command; there is bootstrap\n" in capsys.readouterr().err
    assert launch.main([]) == 2
    assert launch.main(["--help"]) == 0
