"""What is decided before Slurm is asked: which runs share an array, and which may be queued."""

import tomllib
from pathlib import Path

import pytest

from pww import train
from pww.clock import ManualClock
from pww.config import paths
from pww.config.load import compose, read_config
from pww.config.running import Done, wants_queue
from pww.config.schema import Config
from pww.errors import ConfigError
from pww.launcher import arrays, runs, submit

QUEUED = [
    "site=slurm", "site.queue.partition=gpu", "site.ranks_per_node=2", "site.queue.node_gpus=4",
]  # fmt: skip


@pytest.fixture(scope="module")
def queued() -> Config:
    return compose(QUEUED)


def with_time(config: Config, time: str) -> Config:
    queue = config.site.queue.model_copy(update={"time": time})
    return config.model_copy(update={"site": config.site.model_copy(update={"queue": queue})})


def wanted(config: Config) -> arrays.Wanted:
    return arrays.Wanted(
        site=config.site, launcher=config.launcher, root=Path(config.run.root), claim=Path,
        is_new=True,
    )  # fmt: skip


def test_runs_that_want_the_same_of_the_queue_share_an_array(queued: Config) -> None:
    short = with_time(queued, "00:10:00")
    often = queued.model_copy(
        update={"launcher": queued.launcher.model_copy(update={"requeues": 3})}
    )
    other_seed = queued.model_copy(update={"seed": 5})
    groups = arrays.allocations(
        [*map(wanted, [queued, short, other_seed, often, short])], longest=100
    )
    assert groups == [[0, 2], [1, 4], [3]]


def test_an_array_is_never_longer_than_it_may_be(queued: Config) -> None:
    groups = arrays.allocations([wanted(queued)] * 12, longest=5)
    assert [len(group) for group in groups] == [5, 5, 2]
    assert sorted(number for group in groups for number in group) == list(range(12))


def test_two_jobs_never_share_a_folder(queued: Config) -> None:
    twice = queued.model_copy(update={"run": queued.run.model_copy(update={"name": "x"})})
    with pytest.raises(ConfigError, match=r"^run\.name=x: 2 jobs would train in one folder; leave"):
        submit.show([twice, twice], clock=ManualClock())
    again = queued.model_copy(update={"resume": "/runs/x"})
    with pytest.raises(ConfigError, match=r"^resume=/runs/x: 3 jobs would train in one folder"):
        submit.submit([again, queued, again], clock=ManualClock())


def test_dry_for_some_is_refused(queued: Config) -> None:
    with pytest.raises(ConfigError, match=r"^dry=true,false: some jobs would be queued; give one"):
        train.queue([queued, queued.model_copy(update={"dry": True})])


def test_jobs_here_and_in_a_queue_are_two_commands(queued: Config) -> None:
    here = compose([])
    assert wants_queue([queued, queued])
    assert not wants_queue([here])
    with pytest.raises(ConfigError, match=r"^site=slurm,local: the one has a queue and the other"):
        wants_queue([here, queued])
    assert Done(0).objective != Done(0).objective, "nan: nothing is known"


def test_a_resumed_run_may_ask_the_queue_for_other_things(queued: Config, tmp_path: Path) -> None:
    mine = with_time(queued, "00:20:00").model_copy(
        update={"run": queued.run.model_copy(update={"root": str(tmp_path), "name": "x"})}
    )
    _, folder = runs.claim(mine, ManualClock())
    words = [*QUEUED, f"resume={folder}", f"run.root={tmp_path}"]
    given = {"site", "site.queue.partition", "site.ranks_per_node", "site.queue.node_gpus"}
    more = compose([*words, "site.queue.time='02:00:00'", "launcher.requeues=3"])
    gone_on = runs.settle(more, frozenset({*given, "site.queue.time", "launcher.requeues"}))
    assert gone_on.site.queue.kind == "slurm"
    assert (gone_on.site.queue.time, gone_on.launcher.requeues) == ("02:00:00", 3)
    assert gone_on.site.queue.partition == "gpu"
    # The site has to be named, and says nothing about what it was told before
    kept = runs.settle(compose(words), frozenset(given))
    assert kept.site.queue == mine.site.queue
    other = compose([*words, "optim.clip_norm=0.5"])
    with pytest.raises(ConfigError, match=r"optim\.clip_norm=0\.5: the run in .* was start"):
        runs.settle(other, frozenset({*given, "optim.clip_norm"}))


def test_a_run_from_before_these_keys_goes_on(tmp_path: Path) -> None:
    config = compose([])
    paths.freeze(config, tmp_path)
    file = tmp_path / "config.yaml"
    text = file.read_text()
    older = text.replace("  scratch: none\n", "").replace(
        "launcher:\n  wait: false\n  requeues: 20\n", ""
    )
    assert len(older) < len(text) - 40
    file.write_text(older)
    again = read_config(file)
    assert (again.site.scratch, again.launcher.wait, again.launcher.requeues) == ("none", False, 0)
    assert again.model_copy(update={"launcher": config.launcher}) == config


def test_hydra_finds_the_launcher_in_a_wheel_and_in_an_editable_install() -> None:
    root = Path(__file__).resolve().parents[3]
    hatch = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert "launch/hydra_plugins" in hatch["targets"]["wheel"]["packages"]
    assert "launch" in hatch["dev-mode-dirs"]
    # Namespace packages have no __init__.py; the launcher that Hydra is told of is there
    assert not (root / "launch" / "hydra_plugins" / "__init__.py").exists()
    target = (root / "conf" / "hydra" / "launcher" / "slurm.yaml").read_text()
    assert "_target_: hydra_plugins.pww_launcher.launcher.SlurmLauncher\n" in target
    assert (root / "launch" / "hydra_plugins" / "pww_launcher" / "launcher.py").is_file()
