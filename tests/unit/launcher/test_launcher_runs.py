"""A run's folder is claimed once; a resumed run is the one that was started."""

import os
from pathlib import Path

import pytest

from pww.clock import ManualClock
from pww.config import paths
from pww.config.check import check
from pww.config.load import compose, read_config
from pww.config.schema import Config
from pww.errors import ConfigError, StateError
from pww.folder import owned
from pww.launcher import runs


@pytest.fixture(scope="module")
def base() -> Config:
    return compose([])


def changed(config: Config, **keys: object) -> Config:
    """`config` with some keys changed; `run_name` is `run.name`."""
    values = config.model_dump(mode="json")
    for key, value in keys.items():
        group, _, leaf = key.partition("_")
        if isinstance(values.get(group), dict):
            values[group][leaf] = value
        else:
            values[key] = value
    return Config.model_validate(values)


@pytest.fixture
def here(base: Config, tmp_path: Path) -> Config:
    return changed(base, run_root=str(tmp_path / "outputs"))


def started(config: Config, clock: ManualClock | None = None) -> Path:
    """A run that has a checkpoint."""
    _, folder = runs.claim(config, clock or ManualClock())
    (folder / "checkpoints").mkdir()
    return folder


def test_two_launches_in_one_second_get_two_folders(here: Config) -> None:
    clock = ManualClock()
    names = []
    for _ in range(3):
        config, folder = runs.claim(here, clock)
        names.append(config.run.name)
        assert folder == paths.run_folder(config)
        assert read_config(folder / "config.yaml") == config
        assert config.resume == "none"
    first = names[0]
    assert len(first) == len("20011231-235959")
    assert names == [first, f"{first}-2", f"{first}-3"]
    assert runs.named(here, clock).run.name == first


def test_a_given_name_is_taken_as_it_is_and_only_once(here: Config) -> None:
    mine = changed(here, run_name="0123")
    assert runs.settle(mine, frozenset()) == mine
    config, folder = runs.claim(mine, ManualClock())
    assert (config.run.name, folder.name) == ("0123", "0123")
    sentence = (
        f"run.name=0123: {folder} exists; give another name, or go on with it: resume={folder}"
    )
    with pytest.raises(ConfigError) as before:
        runs.settle(mine, frozenset())
    with pytest.raises(ConfigError) as race:
        runs.claim(mine, ManualClock())
    assert before.value.faults == race.value.faults == (sentence,)


def test_a_folder_that_cannot_be_made(here: Config, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    mine = changed(here, run_root=str(tmp_path / "file"))
    with pytest.raises(StateError, match=r"cannot make the run's folder in .*: .*run\.root=…"):
        runs.claim(mine, ManualClock())


def test_resume_keeps_the_stored_configuration(here: Config) -> None:
    folder = started(changed(here, run_name="x", optim_lr=0.25))
    again = changed(
        here, resume=str(folder), central_url="http://127.0.0.1:1", metrics_every_steps=3
    )
    given = frozenset({"resume", "central.url", "metrics.every_steps", "hydra.job.name"})
    config = runs.settle(again, given)
    assert config.optim.lr == 0.25
    assert config.central.url == "http://127.0.0.1:1"
    assert config.metrics.every_steps == 3
    assert config.resume == str(folder)
    assert config.run.name == "x"
    frozen, same = runs.claim(config, ManualClock())
    assert same == folder
    assert read_config(folder / "config.yaml") == frozen == config


def test_a_run_that_is_being_trained_is_not_touched(here: Config) -> None:
    folder = started(changed(here, run_name="x"))
    before = (folder / "config.yaml").read_bytes()
    config = runs.settle(changed(here, resume=str(folder)), frozenset({"resume"}))
    with (
        owned(folder, remedy="-"),
        pytest.raises(StateError, match="in use by another process: wait for it, or start a new"),
    ):
        runs.claim(config, ManualClock())
    assert (folder / "config.yaml").read_bytes() == before


def test_what_is_not_given_stays_as_it_was(here: Config) -> None:
    folder = started(changed(here, run_name="x", central_url="http://127.0.0.1:9"))
    config = runs.settle(changed(here, resume=str(folder)), frozenset({"resume"}))
    assert config.central.url == "http://127.0.0.1:9"


def test_a_given_key_that_differs_is_refused(here: Config) -> None:
    folder = started(changed(here, run_name="x"))
    again = changed(here, resume=str(folder), optim_clip_norm=0.5, replica="b", data_max_windows=7)
    given = frozenset({"resume", "optim", "replica", "seed", "data"})
    with pytest.raises(ConfigError) as caught:
        runs.settle(again, given)
    tail = "and a resumed run keeps its configuration; leave it out, or start a new run"
    data, clip, replica = caught.value.faults
    assert clip == f"optim.clip_norm=0.5: the run in {folder} was started with 1.0, {tail}"
    assert replica == f"replica=b: the run in {folder} was started with a, {tail}"
    first = here.data.max_windows
    assert data == f"data.max_windows=7: the run in {folder} was started with {first}, {tail}"


@pytest.mark.parametrize("central", ["none", "http://127.0.0.1:9"])
def test_a_run_goes_on_with_lower_rates(here: Config, central: str) -> None:
    """What is said to who went to nan; with a central the outer rate is the central's own."""
    folder = started(changed(here, run_name="x", central_url=central))
    again = changed(here, resume=str(folder), optim_lr=0.0005)
    assert runs.settle(again, frozenset({"resume", "optim.lr"})).optim.lr == 0.0005
    assert runs.settle(again, frozenset({"resume"})).optim.lr == 0.003
    tail = "and a resumed run keeps its configuration; leave it out, or start a new run"
    with pytest.raises(ConfigError) as caught:  # a default of a group that was typed
        runs.settle(again, frozenset({"resume", "optim"}))
    assert caught.value.faults == (
        f"optim.lr=0.0005: the run in {folder} was started with 0.003, {tail}",
    )
    again = compose([f"resume={folder}", "diloco.outer.lr=0.3"])
    given = frozenset({"resume", "diloco.outer.lr"})
    if central == "none":
        config = runs.settle(again, given)
        assert (config.diloco.outer.lr, config.diloco.outer.momentum) == (0.3, 0.9)
        assert config.run.name == "x"
        return
    with pytest.raises(ConfigError, match=r"^diloco\.outer\.lr=0\.3: the run in .* with 0\.7, "):
        runs.settle(again, given)


def of(*words: str, root: Path) -> Config:
    return compose([*words, f"run.root={root}"])


SLURM = ("site=slurm", "site.queue.partition=gpu")


@pytest.mark.parametrize(
    ("first", "words", "ranks", "shard"),
    [
        (["parallel.ranks=4"], ["parallel.ranks=2"], 2, 2),
        (["parallel=ddp", "parallel.ranks=4"], ["parallel=ddp", "parallel.ranks=2"], 2, 1),
        (["parallel=single"], ["parallel=ddp", "parallel.ranks=2"], 2, 1),
        (
            [*SLURM, "site.num_nodes=2", "site.ranks_per_node=4"],
            [*SLURM, "site.num_nodes=1", "site.ranks_per_node=4"], 4, 4,
        ),
        (
            [*SLURM, "site.ranks_per_node=2", "diloco.replicas=2"],
            [*SLURM, "site.ranks_per_node=8", "diloco.replicas=2"], 8, 8,
        ),
    ],
)  # fmt: skip
def test_a_run_goes_on_with_another_number_of_ranks(
    tmp_path: Path, first: list[str], words: list[str], ranks: int, shard: int
) -> None:
    """The number and what follows from it; all else is the run's own."""
    folder = started(of(*first, "run.name=x", "optim.lr=0.001", root=tmp_path))
    again = of(*words, f"resume={folder}", root=tmp_path)
    given = frozenset(word.partition("=")[0] for word in words) | {"resume"}
    config = runs.settle(again, given)
    parallel, site = config.parallel, config.site
    assert (parallel.ranks, parallel.shard_ranks) == (ranks, shard)
    assert site.num_nodes * site.ranks_per_node == ranks
    assert config.optim.lr == 0.001
    assert check(config) == []
    frozen, _ = runs.claim(config, ManualClock())
    assert frozen.parallel.ranks == ranks


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["parallel=ddp"], r"^parallel\.kind=ddp: the run in .* was started with fsdp, "),
        (
            ["parallel=ddp"],
            r"parallel\.ranks=1: the run in .* was started with 4, .* keeps its conf",
        ),
        (
            [*SLURM, "site.ranks_per_node=2"],
            r"site\.name=slurm: the run in .* was started with local, ",
        ),
        (["parallel.ranks=3"], r"^diloco\.replicas=2: must divide parallel\.ranks=3"),
        (
            ["parallel.ranks=2", "diloco.replicas=1"],
            r"^diloco\.replicas=1: the run in .* was started with 2, ",
        ),
    ],
)
def test_a_number_of_ranks_that_does_not_fit(tmp_path: Path, words: list[str], told: str) -> None:
    """Not by a group's default either: it may be no more than one rank."""
    folder = started(
        of("parallel.ranks=4", "diloco.replicas=2", "run.name=x", "optim.batch_windows=12",
           "darl.block_windows=12", root=tmp_path)
    )  # fmt: skip
    words = [*words, "optim.batch_windows=12", "darl.block_windows=12"]
    again = of(*words, f"resume={folder}", root=tmp_path)
    given = frozenset(word.partition("=")[0] for word in words) | {"resume"}
    with pytest.raises(ConfigError, match=told):
        runs.settle(again, given)


def test_ranks_are_counted_by_the_nodes_of_the_runs_site(tmp_path: Path) -> None:
    folder = started(of(*SLURM, "site.ranks_per_node=4", "run.name=x", root=tmp_path))
    again = of("parallel.ranks=2", f"resume={folder}", root=tmp_path)
    with pytest.raises(
        ConfigError, match=r"^site=local: the run in .* is one of site=slurm, whose"
    ):
        runs.settle(again, frozenset({"resume", "parallel.ranks"}))


def test_there_must_be_such_a_run(here: Config, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    with pytest.raises(ConfigError) as caught:
        runs.settle(changed(here, resume=str(nowhere)), frozenset({"resume"}))
    assert caught.value.faults == (f"resume={nowhere}: there is no folder {nowhere}",)
    nowhere.mkdir()
    with pytest.raises(ConfigError) as caught:
        runs.settle(changed(here, resume=str(nowhere)), frozenset({"resume"}))
    assert caught.value.faults == (
        f"resume={nowhere}: {nowhere} holds no run (config.yaml is missing)",
    )
    folder = started(changed(here, run_name="x"))
    (folder / "finished").write_text("")
    with pytest.raises(ConfigError) as caught:
        runs.settle(changed(here, resume=str(folder)), frozenset({"resume"}))
    assert caught.value.faults == (
        f"resume={folder}: the run in {folder} is finished; start a new one",
    )


def test_auto_finds_the_newest_unfinished_run_of_this_replica(here: Config) -> None:
    auto = changed(here, resume="auto")
    assert runs.newest(auto) is None
    assert runs.settle(auto, frozenset({"resume"})) == auto
    folders = {
        name: started(changed(here, run_name=name, **keys))
        for name, keys in {
            "old": {},
            "new": {},
            "finished": {},
            "other-replica": {"replica": "b"},
            "other-data": {"data_name": "x"},
            "other-central": {"central_url": "http://127.0.0.1:1"},
            "no-checkpoint": {},
            "torn": {},
        }.items()
    }
    for age, folder in enumerate(folders.values()):
        os.utime(folder / "config.yaml", (1000 + age, 1000 + age))
    (folders["finished"] / "finished").write_text("")
    (folders["no-checkpoint"] / "checkpoints").rmdir()
    (folders["torn"] / "config.yaml").write_text("a: [")
    assert runs.newest(auto) == folders["new"]
    assert runs.settle(auto, frozenset({"resume"})).run.name == "new"
    os.utime(folders["old"] / "config.yaml", (9000, 9000))
    assert runs.newest(auto) == folders["old"]
    named = changed(auto, run_name="mine")
    with pytest.raises(ConfigError, match=r"run\.name=mine: the run in .* was started with old"):
        runs.settle(named, frozenset({"resume", "run.name"}))


def test_auto_without_a_run_makes_a_new_one(here: Config) -> None:
    config, _ = runs.claim(changed(here, resume="auto"), ManualClock())
    assert config.resume == "none"
