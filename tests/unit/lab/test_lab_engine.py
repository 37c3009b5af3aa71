"""A run from its first row to its last, and what counts as diverged."""

import math
from pathlib import Path

import pytest
import torch

from pww.config.prepare import LAB, prepare
from pww.config.schema.lab import CharLm, LabConfig, Quadratic
from pww.lab import engine, quadratic_task
from pww.lab.outcome import Outcome, Row
from pww.lab.quadratic_setting import Setting


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small text where the configuration looks for it."""
    folder = tmp_path / "tinyshakespeare"
    folder.mkdir()
    lines = [f"Ann:\nthe {word} is here.\n\nBob:\nno, {word}!\n" for word in ("cat", "dog", "day")]
    (folder / "input.txt").write_text("\n".join(lines * 60))
    monkeypatch.setenv("PWW_DATA", str(tmp_path))


def run(*words: str) -> tuple[Outcome, list[Row]]:
    config = prepare(["lab.eval_windows=4", *words], shape=LAB).configs[0]
    assert isinstance(config, LabConfig)
    rows: list[Row] = []
    if isinstance(config.task, CharLm):
        return engine.run(config, config.task, write=rows.append), rows
    return quadratic_task.run(config, config.task, write=rows.append), rows


def test_rows_and_result() -> None:
    made, rows = run("lab.steps=40", "lab.eval_every=20", "lab.log_every=20")
    assert [(r["split"], r["step"], r["round"]) for r in rows] == [
        ("eval", 0, 0), ("train", 20, 2), ("outer", 20, 2), ("eval", 20, 2), ("train", 40, 4),
        ("outer", 40, 4), ("eval", 40, 4),
    ]  # fmt: skip
    assert made.tokens == rows[-1]["tokens"] == 40 * 4 * 4 * 48
    assert (made.steps, made.loss, made.diverged) == (40, rows[-1]["loss"], False)
    assert made.bytes["payload"] == 4 * 4 * 5376 == rows[-2]["payload"]
    first = rows[0]["loss"]
    assert isinstance(first, float)
    assert first == pytest.approx(math.log(96), abs=0.1)
    assert made.loss < first - 1


def test_it_learns_the_same_again() -> None:
    words = ("lab.steps=20", "codec=topk")
    assert run(*words)[0] == run(*words)[0]
    assert run(*words)[0].loss != run(*words, "seed=1")[0].loss


def test_the_evaluation_is_the_mean_over_windows() -> None:
    """Of more than are evaluated at once."""
    assert engine.EVALUATED == 64
    config = prepare(["lab.eval_windows=100"], shape=LAB).configs[0]
    assert isinstance(config, LabConfig)
    assert isinstance(config.task, CharLm)
    from pww.lab import text

    made = engine.Engine(config, config.task, text.load(config.task))
    made._scratch.load(made.method.theta())
    with torch.no_grad():
        whole = made.network.losses(made._scratch.params, made._held_out)
    assert made.evaluate() == pytest.approx(float(whole), rel=1e-5)


def test_a_number_that_is_none_ends_the_run() -> None:
    made, rows = run("optim=sgd", "optim.lr=1e18", "optim.clip_norm=1e18", "lab.steps=200")
    assert (made.loss, made.diverged) == (math.inf, True)
    assert made.steps < 200
    last = rows[-1]
    assert last["split"] in ("stopped", "eval")


def test_a_loss_above_the_start_has_diverged() -> None:
    made, _ = run(
        "workers=4", "lab.steps=60", "attack=sign_flip", "attack.workers=2", "attack.scale=20"
    )
    assert made.diverged
    assert math.isfinite(made.loss)


def test_the_schedule_is_that_of_a_run() -> None:
    from pww.trainer.schedule import phase_lrs

    config = prepare(["lab.steps=40", "optim.decay=cosine"], shape=LAB).configs[0]
    assert isinstance(config, LabConfig)
    assert isinstance(config.task, CharLm)
    from pww.lab import text

    made = engine.Engine(config, config.task, text.load(config.task))
    assert made._lrs == phase_lrs(0.0, 1.0, 40, config.optim)
    assert made._lrs[0] < max(made._lrs) > made._lrs[-1]


# quadratic


def test_the_quadratic_s_keys_mean_the_same() -> None:
    config = prepare(
        [
            "task=quadratic", "method=local", "workers=6", "method.participation=0.5",
            "method.divide_by=expected",
            "method.delay=2", "diloco.inner_steps=4", "codec=randomk", "codec.keep=1024",
            "optim.lr=0.1", "diloco.outer.lr=0.5", "attack=inner_product", "attack.workers=2",
            "attack.scale=0.3", "task.optima=[1,2,3,4,5,6]",
        ],
        shape=LAB,
    ).configs[0]  # fmt: skip
    assert isinstance(config, LabConfig)
    assert isinstance(config.task, Quadratic)
    assert quadratic_task.setting(config, config.task) == Setting(
        workers=6, participation=0.5, divide="expected", delay=2, inner_steps=4, codec="randomk",
        kept=0.25, lr=0.1, outer_lr=0.5, attack="inner_product", attackers=2, attack_scale=0.3,
        optima=(1.0, 2.0, 3.0, 4.0, 5.0, 6.0),
    )  # fmt: skip


def test_other_rules_and_optimisers_of_the_quadratic() -> None:
    def made(*words: str) -> Setting:
        config = prepare(["task=quadratic", "workers=7", *words], shape=LAB).configs[0]
        assert isinstance(config, LabConfig)
        assert isinstance(config.task, Quadratic)
        return quadratic_task.setting(config, config.task)

    assert made("merge=geometric").merge == "geometric_median"
    assert (made("merge=trimmed", "merge.trim=3").tolerated, made("merge=krum").tolerated) == (3, 1)
    assert made("merge=clipped", "merge.limit=2").clip == 2.0
    assert (made().outer, made().momentum) == ("nesterov", 0.9)
    dither = made("task.dither=0.5")
    assert (dither.codec, dither.step) == ("dither", 0.5)
    assert made("attack=sign_flip", "attack.coordinated=true").attack == "sign_flip"


def test_the_quadratic_reaches_its_closed_form() -> None:
    """Form 1: alpha = 1, beta = 0 has the same floor whatever H."""
    a, eta, workers = 1.0, 0.4, 3
    floor = a / 2 * eta**2 / ((1 - (1 - eta * a) ** 2) * workers)
    made, rows = run(
        "task=quadratic", "method=local", f"task.curvature=[{a}]", f"workers={workers}",
        f"optim.lr={eta}",
        "diloco.inner_steps=5", "lab.steps=4000", "lab.eval_every=500",
    )  # fmt: skip
    assert made.loss == pytest.approx(floor, rel=0.05)
    assert [r["step"] for r in rows] == [500 * i for i in range(1, 9)]
    assert set(made.bytes.values()) == {0}
