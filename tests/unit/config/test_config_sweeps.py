"""Sweeps: every job is checked before the first starts; and the flags of a command line."""

from pathlib import Path

import pytest

from pww.config.compose import Source
from pww.config.load import run_app
from pww.config.prepare import find, prepare
from pww.config.schema import Config
from pww.errors import ConfigError, StateError


def test_every_job_is_composed() -> None:
    prepared = prepare(["optim.lr=0.1,0.2", "seed=range(1,3)", "codec=bf16"], multirun=True)
    jobs = [(c.optim.lr, c.seed, c.codec.kind) for c in prepared.configs]
    assert jobs == [(0.1, 1, "bf16"), (0.1, 2, "bf16"), (0.2, 1, "bf16"), (0.2, 2, "bf16")]


def test_the_mode_may_come_from_a_key() -> None:
    assert len(prepare(["hydra.mode=MULTIRUN", "seed=1,2,3"]).configs) == 3


def test_one_bad_job_refuses_the_sweep() -> None:
    with pytest.raises(ConfigError) as caught:
        prepare(["parallel.ranks=1,3", "data=pydocs,foo", "seed=1,2"], multirun=True)
    assert sorted(caught.value.faults) == sorted(
        [
            "optim.batch_windows=8: must be a multiple of parallel.ranks=3; for example 9",
            "data=foo: data is one of c4, cifar10, digits, gutenberg, jsonl, parquet, pydocs, "
            "text, tinyshakespeare, wikitext2",
        ]
    )


def test_an_interval_cannot_be_swept() -> None:
    with pytest.raises(ConfigError) as caught:
        prepare(["optim.lr=interval(0,1)"], multirun=True)
    assert caught.value.faults == (
        "optim.lr=interval(0,1): an interval cannot be enumerated; give values a,b,c or "
        "range(start,stop,step)",
    )


def test_a_launcher_that_does_not_fit_the_site() -> None:
    """Where jobs go is said by the site alone."""
    said = {
        ("hydra/launcher=slurm",): "slurm: site=local has no queue; leave it out",
        ("hydra/launcher=submitit_local",): (
            "submitit_local: jobs at site=local run here, one after another; leave it out"
        ),
        ("hydra/launcher=submitit_slurm", "site=snellius"): (
            "submitit_slurm: jobs at site=snellius run in the queue; leave it out"
        ),
    }
    for words, sentence in said.items():
        with pytest.raises(ConfigError) as caught:
            prepare(words, multirun=True)
        assert caught.value.faults == (f"hydra/launcher={sentence}",)
    assert prepare(["hydra/launcher=slurm", "site=snellius"], multirun=True).sweeper == "basic"


def test_a_sweeper_that_chooses_its_jobs_is_checked_by_the_words_that_are_fixed() -> None:
    words = ["hydra/sweeper=basic", "optim.lr=interval(0,1)"]
    with pytest.raises(ConfigError, match="cannot be enumerated"):
        prepare(words, multirun=True)
    with pytest.raises(ConfigError) as caught:
        prepare(["hydra/sweeper=optuna", "seed=1"], multirun=True)
    assert "hydra/sweeper=optuna: hydra/sweeper is one of" in caught.value.faults[0]


def test_a_programs_defaults_are_beaten_by_the_command_line() -> None:
    defaults = ["run.name=central-${data.name}", "seed=4"]
    config = prepare(["seed=5", "data=c4"], defaults=defaults).configs[0]
    assert (config.run.name, config.seed) == ("central-c4", 5)


def test_refine_sees_the_keys_that_were_given_and_adds_its_faults() -> None:
    seen: list[frozenset[str]] = []

    def refine(config: Config, given: frozenset[str]) -> Config:
        seen.append(given)
        raise ConfigError(["mine"])

    with pytest.raises(ConfigError) as caught:
        prepare(["data/tokenizer=bpe", "seed=x", "dry=true"], defaults=["seed=1"], refine=refine)
    assert caught.value.faults == (
        "seed=x: a whole number, 0 or more, less than 2147483648",
        "mine",
    )
    assert seen == [frozenset({"data.tokenizer", "dry"})]


def run(*argv: str, code: int = 0) -> tuple[int, list[Config]]:
    ran: list[Config] = []

    def task(config: Config) -> int:
        ran.append(config)
        return code

    return run_app(task, program="pww.train", argv=argv), ran


def test_flags_may_stand_anywhere() -> None:
    code, ran = run("seed=1,2", "-m", "dry=true")
    assert code == 0
    assert [c.seed for c in ran] == [1, 2]


def test_the_exit_code_is_the_tasks() -> None:
    assert run("seed=1", code=7)[0] == 7
    assert run("dry=true", code=7)[0] == 7


def test_the_job_that_was_checked_is_the_job_that_runs(tmp_path: Path) -> None:
    code, ran = run("-m", "seed=3,4", f"run.root={tmp_path}", code=5)
    assert code == 5
    assert [c.seed for c in ran] == [3, 4]
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["multirun.yaml"]


def test_an_interrupted_job_ends_the_sweep(tmp_path: Path) -> None:
    code, ran = run("-m", "seed=3,4", f"run.root={tmp_path}", code=130)
    assert code == 130
    assert len(ran) == 1


def test_a_fault_of_the_task_is_printed_as_its_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    def task(config: Config) -> int:
        raise StateError("port 1 is taken")

    assert run_app(task, program="pww.train", argv=[]) == 1
    assert capsys.readouterr().err == "port 1 is taken\n"


def test_a_bug_of_the_task_keeps_its_traceback() -> None:
    def task(config: Config) -> int:
        raise ZeroDivisionError("ours")

    with pytest.raises(ZeroDivisionError, match="ours"):
        run_app(task, program="pww.train", argv=[])


def test_a_keyboard_interrupt_is_130() -> None:
    def task(config: Config) -> int:
        raise KeyboardInterrupt

    assert run_app(task, program="pww.train", argv=[]) == 130


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--foo"], "unrecognized arguments: --foo; --help shows what there is"),
        (
            ["--experimental-rerun", "x"],
            "--experimental-rerun reads pickles, which pww does not; use resume=; --help shows "
            "what there is",
        ),
        (["-cd", "/nowhere"], "--config-dir /nowhere: no such folder; --help shows what there is"),
    ],
)
def test_flags_that_are_refused(
    argv: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*argv) == (2, [])
    assert capsys.readouterr().err == f"{sentence}\n"


def test_another_primary_config_and_another_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("defaults:\n  - config\n  - _self_\nseed: 77\n")
    code, ran = run("-cd", str(tmp_path), "-cn", "mine", "dry=true")
    assert code == 0
    assert ran[0].seed == 77


def test_an_unknown_key_and_a_wrong_value_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "diloco").mkdir()
    text = Path(Source().config_dir, "diloco", "default.yaml").read_text()
    text = text.replace("grace: 0.1", "grase: 0.1\ngrace: much")
    (tmp_path / "diloco" / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        prepare(["diloco=mine"], source=Source(extra_dirs=(tmp_path,)))
    assert caught.value.faults == (
        "diloco.grace=much: a number, 0 or more",
        "diloco.grase=0.1: no such key; diloco has grace, inner_steps, norm_clip, outer, overlap, "
        "phase, quorum, recalibrate_bn, replicas, staleness_discount, staleness_window; did "
        "you mean grace?",
    )


def test_a_time_without_quotes_in_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    text = Path(Source().config_dir, "site", "snellius.yaml").read_text()
    (tmp_path / "site" / "mine.yaml").write_text(text.replace('time: "01:00:00"', "time: 12:30:00"))
    with pytest.raises(ConfigError) as caught:
        prepare(["site=mine"], source=Source(extra_dirs=(tmp_path,)))
    assert caught.value.faults == (
        "site.queue.time=45000: [days-]hours:minutes:seconds, in quotes",
    )


def test_a_file_that_is_no_yaml(tmp_path: Path) -> None:
    (tmp_path / "codec").mkdir()
    (tmp_path / "codec" / "mine.yaml").write_text("kind: [fp32\n")
    with pytest.raises(ConfigError) as caught:
        prepare(["codec=mine", "seed=x"], source=Source(extra_dirs=(tmp_path,)))
    yaml_fault, value_fault = sorted(caught.value.faults)
    assert yaml_fault.startswith("codec=mine: ")
    assert "mine.yaml" in yaml_fault
    assert value_fault == "seed=x: a whole number, 0 or more, less than 2147483648"


def test_a_primary_config_that_does_not_exist() -> None:
    (sentence,) = find([], source=Source(config_name="nope"))
    assert sentence.startswith("Cannot find primary config 'nope'.")
