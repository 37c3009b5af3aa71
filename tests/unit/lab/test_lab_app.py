"""The program: what is refused, what a cell is called, which runs are made, tuned and kept."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pww.clock import ManualClock
from pww.config import paths
from pww.config.paths import CONF
from pww.config.prepare import LAB, prepare
from pww.config.schema.lab import LabConfig
from pww.errors import ConfigError, LabError
from pww.lab import app, one
from pww.lab.records import TRAFFIC, Result, read_run
from pww.lab.study import read_study

FAST = ("lab.steps=4", "diloco.inner_steps=2", "lab.eval_windows=2")
QUADRATIC = ("task=quadratic", "lab.steps=200", "lab.eval_every=100", "task.chains=2")


@pytest.fixture
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where runs land."""
    monkeypatch.setattr(paths, "PROJECT", tmp_path)
    text = tmp_path / "tinyshakespeare" / "input.txt"
    text.parent.mkdir()
    text.write_text("Ann:\nSo it is.\n\nBob:\nIt is not.\n\n" * 50)
    monkeypatch.setenv("PWW_DATA", str(tmp_path))
    return tmp_path / "outputs" / "lab" / "study"


def faults(*words: str) -> str:
    """What is said of a cell that is refused."""
    made = app.App()
    with pytest.raises(ConfigError) as error:
        prepare(app.spelled(words), shape=LAB, refine=made.settle)
    return str(error.value)


def cell(*words: str) -> dict[str, object]:
    made = app.App()
    prepare(app.spelled(words), shape=LAB, refine=made.settle)
    return dict(made._jobs[0].cell)


@pytest.mark.parametrize("group", ["task", "method", "merge", "attack"])
def test_every_choice_composes(group: str) -> None:
    for path in sorted((CONF / group).glob("*.yaml")):
        more = ("workers=8",) if group in ("merge", "attack") else ()
        config = prepare([f"{group}={path.stem}", *more], shape=LAB).configs[0]
        assert isinstance(config, LabConfig)
        section = getattr(config, group)
        assert path.stem == getattr(section, "name", section.kind)


REFUSED = {
    "lab.steps=100 diloco.inner_steps=16 optim.accumulate=2 diloco.outer.optimizer=sgd "
    "codec=sign codec.feedback=false merge=trimmed merge.trim=2 attack=noise attack.workers=3 "
    "method.eager=true method.divide_by=expected method.fragments=20 optim.decay_share=0.1": (
        "use lab.steps=96 or 112", "the lab takes a batch at once; use 1",
        "diloco.outer.optimizer=sgd has none",
        "use codec.feedback=true, or codec.force=true", "leaves nothing of workers=4",
        "use at most 2", "method.delay=0; use method.delay=1", "it needs merge=mean",
        "only changes a mean where some are absent",
        "diloco.inner_steps=16; use at most that many",
        "has no effect with optim.decay=constant", "nobody is absent",
    ),
    "lab.steps=10 diloco.inner_steps=16 method.feedback_decay=0.9 method.fragments=2 "
    "method.delay=1 method.worker_steps=[10,5] merge=median method.weighting=tokens "
    "lab.tune=lr:[1,2] optim.lr=3": (
        "use lab.steps=16", "codec=fp32 keeps no residual", "needs method.delay=0",
        "needs a number for each of workers=4", "merge=median has no weights",
        "lab.tune.lr takes its place",
    ),
    "method.worker_steps=[9,5,5,5] merge=krum method.participation=0.5 attack=noise "
    "lab.tune=lr:[1]": (
        "the largest of them diloco.inner_steps=10", "krum needs 2 f + 3 = 5 workers",
        "the same number of workers",
        "who is there changes; use 1", "for one alone give optim.lr",
    ),
    "method.weighting=equal lab.tune.lr=[1,1] task.text=pydocs task.roots=[a]": (
        "workers that take equally many steps weigh the same",
        "names several different learning rates", "task.text=pydocs reads no files",
    ),
    "method=sync diloco.inner_steps=4 metod=sync optim=muon task.size=7b": (
        "diloco.inner_steps=4: no such key", "did you mean", "one of adamw, sgd",
        "one of toy, 413k, 915k",
    ),
    "method=dgc codec=int4 codec.feedback=false optim.momentum=0.5": (
        "method=dgc sends the largest values; use codec=topk",
        "has its own momentum and no decay; use 0 for both",
        "codec.feedback: method=dgc keeps what is not sent",
    ),
    "method=demo codec=int4": ("method=demo sends cosine coefficients; use codec=dct",),
    "method=dgc optim=adamw": ("optim.momentum=0.0: no such key",),
    "task=quadratic method.fragments=2 optim.momentum=0.5 codec=int4 "
    "diloco.outer.solo_full_step=true attack=noise "
    "attack.coordinated=true optim.batch_windows=2": (
        "task=quadratic does not know them", "takes plain steps of one learning rate",
        "knows fp32 and randomk, and task.dither", "does not know it; use false",
        "independent noise only",
        "optim.batch_windows: task=quadratic has no use",
    ),
    "task=quadratic codec=randomk task.dither=1 attack=sign_flip "
    "method.worker_steps=[10,5,5,5]": (
        "has task.weights instead",
        "takes the place of a codec", "a coordinated sign flip only",
    ),
    "method.overlap_steps=10 method.delay=1 method.participation=0.5": (
        "method.overlap_steps=10: the outer step comes within the phase after its own, of "
        "diloco.inner_steps=10; use fewer",
        "every worker goes on from its own parameters; needs method.delay=0",
    ),
    "task=model model=resnet18 workers=0": (
        "model=resnet18: has running statistics (BatchNorm)", "workers=0: a whole number",
    ),
    "model=qwen3_debug": ("task=charlm has a model of its own; add task=model",),
    "task=quadratic model=llama3_debug": ("task=quadratic has a model of its own",),
    "task=model model.dim=x model.num_heads=0 model.kind=resnet": (
        "model.kind=resnet: one of custom, hf, shipped",
    ),
    "task=model model.dim=x model.num_heads=0 model.num_kv_heads=3": (
        "model.dim=x: a whole number", "model.num_heads=0: a whole number",
    ),
    "task=model model.num_kv_heads=3 model.head_dim=7 task.text=pydocs task.roots=[a]": (
        "must divide model.num_heads=4", "must be even", "task.text=pydocs reads no files",
    ),
    "task=model model=qwen3_0.6b model.flavor=8B model.seq_len=50000": ("at most 40960",),
    "task=model model=hf/gpt2 +model.changes.vocab_size=3": (
        "model.changes.vocab_size: comes from the corpus's tokenizer",
    ),
    "task=model model=llama3_8b parallel.activation_checkpoint=none": (
        "parallel={activation_checkpoint: none}: no such key",
    ),
    "task=quadratic method=sync": ("task=quadratic knows diloco and local",),
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED, ids=range(len(REFUSED)))
def test_what_is_refused_all_at_once(words: str) -> None:
    told = faults(*words.split())
    assert [said for said in REFUSED[words] if said not in told] == []


def test_a_task_that_trains_a_model_and_has_none() -> None:
    made = prepare(["task=model"], shape=LAB).configs[0]
    assert isinstance(made, LabConfig)
    assert LAB.check(made.model_copy(update={"model": None}), lambda key: False) == [
        "model=null: task=model trains a model of conf/model; use model=qwen3_debug"
    ]


def test_a_model_of_the_tree_brings_its_rate_and_leaves_what_is_of_a_run_alone() -> None:
    made = prepare(["task=model", "model=llama3_8b", "method=dgc"], shape=LAB).configs[0]
    assert isinstance(made, LabConfig)
    assert made.model is not None
    assert (made.model.name, made.optim.lr, made.optim.name) == ("llama3_8b", 2e-4, "sgd")


def test_a_run_of_a_model_is_a_folder(outputs: Path) -> None:
    sizes = ["model.dim=16", "model.num_layers=1", "model.hidden_dim=16", "model.seq_len=16"]
    assert app.start([*FAST, "task=model", "workers=2", *sizes]) == 0
    (folder,) = outputs.iterdir()
    run = read_run(folder)
    assert (run.result.task, run.result.tokens) == ("model", 4 * 2 * 4 * 16)
    assert run.result.cell["model.dim"] == 16
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["task"] == {"kind": "model", "text": "tinyshakespeare", "split": "iid",
                              "roots": config["task"]["roots"]}  # fmt: skip
    config["task"]["roots"] = tuple(config["task"]["roots"])
    assert LabConfig.model_validate(config)


def test_an_outer_loop_without_a_method_that_has_one() -> None:
    made = prepare([], shape=LAB).configs[0]
    assert isinstance(made, LabConfig)
    assert LAB.check(made.model_copy(update={"diloco": None}), lambda key: False) == [
        "diloco: method=diloco and an outer loop; leave diloco to the method"
    ]


def test_an_optimiser_with_a_state_of_its_own() -> None:
    made = prepare(["method=dgc"], shape=LAB).configs[0]
    adamw = prepare([], shape=LAB).configs[0].optim
    assert LAB.check(made.model_copy(update={"optim": adamw}), lambda key: False) == [
        "optim=adamw: method=dgc steps by what it averaged, without an optimiser's state; use "
        "optim=sgd"
    ]


def test_force_may_stand_where_a_sweep_needs_it() -> None:
    words = ["codec=int2", "codec.force=true", "codec.feedback=true,false"]
    assert len(prepare(words, shape=LAB, multirun=True).configs) == 2


def test_keys_of_runs_are_none_of_the_lab_and_the_other_way_round() -> None:
    assert "no such key" in faults("transport.limit_mb=3")
    with pytest.raises(ConfigError, match="no such key"):
        prepare(["workers=3"])


def test_a_cell_is_what_was_typed_but_for_seed_and_rate() -> None:
    assert cell("workers=8", "codec=topk", "codec.keep=64", "seed=3", "lab.seeds=2") == {
        "workers": 8, "codec": "topk", "codec.keep": 64,
    }  # fmt: skip
    assert cell("method=sync", "optim.lr=0.1", "lab.study=x", "lab.threads=2") == {"method": "sync"}
    assert cell("lab.tune=lr:[1,2]", "diloco.inner_steps=5", "lab.steps=10") == {
        "diloco.inner_steps": 5, "lab.steps": 10,
    }  # fmt: skip
    assert cell("workers=2", "method.worker_steps=[10,2]", "optim=sgd") == {
        "workers": 2, "method.worker_steps": [10, 2], "optim": "sgd",
    }  # fmt: skip
    assert cell() == {}


def test_the_short_form_of_tuning() -> None:
    made = prepare(app.spelled(["lab.tune=lr:[1e-3,3e-3]"]), shape=LAB).configs[0]
    assert isinstance(made, LabConfig)
    assert made.lab.tune.lr == (1e-3, 3e-3)


def test_a_dry_run_names_its_runs(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.start(["dry=true", "lab.seeds=2", "lab.tune.lr=[1e-3,1e-2]", "codec=int4"]) == 0
    names = [Path(line.partition(":")[0]).name for line in capsys.readouterr().out.splitlines()]
    assert names == [
        "codec=int4-lr0.001-s0", "codec=int4-lr0.001-s1", "codec=int4-lr0.01-s0",
        "codec=int4-lr0.01-s1",
    ]  # fmt: skip
    assert not outputs.exists()


def test_a_run_is_a_folder(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.start([*FAST, "workers=2", "codec=int4", "seed=5"]) == 0
    (folder,) = outputs.iterdir()
    run = read_run(folder)
    assert folder.name.endswith("-s5")
    result = run.result
    assert (result.task, result.method, result.seed, result.lr) == ("charlm", "diloco", 5, 3e-3)
    assert (result.tuned, result.candidate, result.steps) == (False, False, 4)
    assert result.cell["codec"] == "int4"
    assert result.tokens == 4 * 2 * 4 * 48
    assert result.bytes["payload"] > 0
    assert f"loss {result.loss:.4f} at lr 0.003, 1 seed(s)" in capsys.readouterr().out
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert (config["seed"], config["task"]["text"]) == (5, "tinyshakespeare")
    config["task"]["roots"] = tuple(config["task"]["roots"])
    assert LabConfig.model_validate(config)
    assert [s for s, _ in run.evals] == [0, 4]


def test_the_best_rate_is_marked_and_the_others_kept(outputs: Path) -> None:
    """With hardly any noise it is the largest, which gets there first."""
    assert (
        app.start([*QUADRATIC, "task.noise=0.01", "lab.seeds=2", "lab.tune=lr:[0.1,0.5,0.3]"]) == 0
    )
    runs = [read_run(folder).result for folder in sorted(outputs.iterdir())]
    assert len(runs) == 6
    assert {(r.lr, r.tuned, r.candidate) for r in runs} == {
        (0.5, True, False), (0.3, False, True), (0.1, False, True),
    }  # fmt: skip
    means = {lr: sum(r.loss for r in runs if r.lr == lr) for lr in (0.1, 0.3, 0.5)}
    assert min(means, key=lambda lr: means[lr]) == 0.5


def test_a_rate_with_a_seed_that_diverged_is_not_the_best(outputs: Path) -> None:
    assert app.start([*QUADRATIC, "lab.tune.lr=[3.0,0.1]"]) == 0
    runs = {read_run(f).result.lr: read_run(f).result for f in outputs.iterdir()}
    assert (runs[3.0].diverged, runs[3.0].candidate, runs[0.1].tuned) == (True, True, True)


def test_a_finished_run_stays_and_an_unfinished_one_is_started_anew(outputs: Path) -> None:
    words = [*QUADRATIC, "lab.seeds=2"]
    assert app.start(words) == 0
    folders = sorted(outputs.iterdir())
    before = [(f / "result.json").stat().st_mtime_ns for f in folders]
    (folders[1] / "result.json").unlink()
    rows = (folders[1] / "metrics.jsonl").read_text()
    (folders[1] / "metrics.jsonl").write_text(json.dumps({"split": "eval", "torn": 1}) + "\n")
    assert app.start(words) == 0
    after = [(f / "result.json").stat().st_mtime_ns for f in folders]
    assert after[0] == before[0]
    assert after[1] != before[1]
    assert (folders[1] / "metrics.jsonl").read_text() == rows


def test_a_folder_that_holds_another_run(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.start([*QUADRATIC]) == 0
    (folder,) = outputs.iterdir()
    path = folder / "config.yaml"
    path.write_text(path.read_text().replace("noise: 1.0", "noise: 2.0"))
    assert app.start([*QUADRATIC]) == 1
    said = capsys.readouterr().err
    assert "holds a finished run that differs in task.noise (2.0, now 1.0)" in said


def test_a_run_made_before_a_key_was_there_is_one_without_what_it_does(
    outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*FAST, "workers=1"]
    assert app.start(words) == 0
    (folder,) = outputs.iterdir()
    path = folder / "config.yaml"
    before = path.read_text()
    path.write_text(before.replace("  overlap_steps: 0\n", ""))
    assert path.read_text() != before
    assert app.start(words) == 0
    assert app.start([*words, "lab.seeds=2"]) == 0
    study = read_study(outputs)
    assert (len(study.runs), study.faults) == (2, ())
    path.write_text(before.replace("overlap_steps: 0", "overlap_steps: 1"))
    assert app.start(words) == 1
    assert "differs in method.overlap_steps (1, now 0)" in capsys.readouterr().err


def test_a_folder_of_a_model_whose_configuration_changed_makes_other_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `model.config` names is no part of the words, nor of config.yaml."""
    described = tmp_path / "model" / "config.json"
    described.parent.mkdir()
    config = prepare(
        ["task=model", "task.text=pydocs", "model=hf/folder", f"model.config={described.parent}"],
        shape=LAB,
    ).configs[0]
    assert isinstance(config, LabConfig)
    trained = []

    def train(*args: object, **more: object) -> Result:
        trained.append(described.read_text())
        return Result(
            task="model", method="diloco", cell={}, seed=0, lr=0.1, tuned=False, loss=5.0,
            diverged=False, steps=1, tokens=1, seconds=1.0, code="-",
            bytes=dict.fromkeys(TRAFFIC, 0),
        )  # fmt: skip

    monkeypatch.setattr(one, "_train", train)

    def make() -> None:
        one.make(config, {}, folder=tmp_path / "run", title="-", code="-", clock=ManualClock())

    described.write_text('{"layers": 3}')
    make()
    make()
    assert len(trained) == 1
    described.write_text('{"layers": 2}')
    with pytest.raises(LabError, match=r"holds a finished run that differs in model\.config_dig"):
        make()
    described.unlink()
    with pytest.raises(LabError, match=r"model\.config=.*: cannot be read: .*No such file"):
        make()


def test_a_sweep_makes_every_cell(outputs: Path) -> None:
    sweep = f"hydra.sweep.dir={outputs.parent / 'sweeps'}"
    assert app.start([*QUADRATIC, "codec=fp32,randomk", sweep, "-m"]) == 0
    assert sorted(read_run(f).result.cell["codec"] for f in outputs.iterdir()) == [
        "fp32", "randomk",
    ]  # fmt: skip


def test_nothing_is_imported_that_help_does_not_need() -> None:
    code = "import sys, pww.lab.app; sys.exit('torch' in sys.modules or 'scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0


def test_the_other_commands_are_reached(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.start(["report", "--help"]) == 0
    assert "pww.lab predict" in capsys.readouterr().out


@pytest.mark.parametrize(("typed", "near"), [("stdy", "; did you mean study?"), ("x", "")])
def test_a_mistyped_command(typed: str, near: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.start([typed, "first"]) == 2
    assert capsys.readouterr().err == (
        f"{typed}: no command (there are predict, report, study), and no override, which is "
        f"key=value{near}\n"
    )


def test_what_a_run_would_refuse_is_said_and_tried(
    outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "a run would refuse this: codec=topk: topk-64-b2 sends 64 of 4096 values"
    assert app.start([*FAST, "codec=topk"]) == 0
    assert said in capsys.readouterr().err
    for more in ("codec.force=true", "method=local"):
        assert app.start([*FAST, "codec=topk", more]) == 0
        assert said not in capsys.readouterr().err
