"""What a study that comes with the lab says of its source, and the composition rule."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from lab_runs import cell_runs

from pww.lab.report.build import build
from pww.lab.report.cells import cells_of, find
from pww.lab.studies.catalogue import RECIPES
from pww.lab.study import read_study


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return tmp_path / "compress"


def section(text: str, title: str) -> str:
    return text.partition(f"## {title}\n")[2].partition("\n## ")[0]


def grid(study: Path, intervals: tuple[int, ...], keeps: tuple[int, ...]) -> None:
    """Runs that follow the rule, as the engine would have configured them."""
    rng = np.random.default_rng(0)
    for h, keep in itertools.product(intervals, (4096, *keeps)):
        dense = keep == 4096
        omega = 4096 / keep - 1
        cell = {"diloco.inner_steps": h, "codec": "fp32" if dense else "randomk"}
        cell |= {} if dense else {"codec.keep": keep}
        codec = {"kind": "fp32"} if dense else {"kind": "randomk", "keep": keep, "feedback": False}
        losses = 2.3 + 0.004 * omega * (h / 16) ** 0.6 + 0.002 * rng.normal(size=2)
        config = {"codec": codec, "diloco": {"inner_steps": h}}
        cell_runs(study, cell, losses.tolist(), config=config)


def test_the_composition_rule_is_fitted_where_there_are_omegas_and_intervals(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pww.lab.report.composition.SPLITS", 10)
    monkeypatch.setattr("pww.lab.report.composition.RESAMPLES", 20)
    grid(study, (4, 16, 64), (2048, 1024, 512, 256))
    done = build(study, against="", recipe=RECIPES["composition"])
    table = section(done.text, "Composition: loss against omega and H")
    fitted = dict(re.findall(r"\| rule +\| (\w+) +\| ([\d.e-]+)", table))
    assert float(fitted["L0"]) == pytest.approx(2.3, abs=0.003)
    assert float(fitted["a"]) == pytest.approx(0.004, rel=0.1)
    assert float(fitted["b"]) == pytest.approx(0.6, abs=0.1)
    assert re.search(
        r"fitted to 33% of them: rule 0\.\d+ %, rival \d+\.\d+ %, the rule better", table
    )
    (one,) = done.agreements
    assert one.agrees == "yes"
    assert one.ours in table


def test_a_grid_of_one_interval_is_not_fitted(study: Path) -> None:
    grid(study, (16,), (2048, 1024, 512, 256))
    done = build(study, against="", recipe=RECIPES["composition"])
    table = section(done.text, "Composition: loss against omega and H")
    assert "- No fit: all cells with a compressor share H = 16" in table
    assert "| rule" not in table
    (one,) = done.agreements
    assert (one.agrees, one.ours) == ("not run", "-")
    assert "share H = 16" in one.why


def test_cells_that_differ_in_something_else_are_no_composition(study: Path) -> None:
    grid(study, (4, 16), (1024,))
    assert "## Composition" in build(study, against="", recipe=None).text
    cell_runs(study, {"merge": "median"}, [2.0, 2.1])
    assert "## Composition" not in build(study, against="", recipe=None).text
    cell_runs(study.with_name("other"), {"codec": "fp32"}, [2.0, 2.1])
    done = build(study.with_name("other"), against="", recipe=RECIPES["composition"])
    assert "## Composition" not in done.text
    assert "too few cells that differ in omega and H" in done.agreements[0].why


def product_of(line: tuple[str, ...]) -> list[dict[str, str]]:
    """The cells of a command line, as a sweep enumerates them."""
    choices = []
    for word in line:
        key, _, value = word.partition("=")
        values = [value] if value.startswith("[") else value.split(",")
        choices.append([(key, one) for one in values])
    return [dict(cell) for cell in itertools.product(*choices)]


def is_of_a_cell(key: str) -> bool:
    return key not in ("lab.seeds", "lab.tune.lr", "lab.study", "lab.eval_every", "optim.lr")


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipes_runs_answer_all_that_it_expects(tmp_path: Path, name: str) -> None:
    """No figure of a source is about a cell that its lines do not run."""
    recipe = RECIPES[name]
    assert re.fullmatch(r"[a-z0-9][a-z0-9_.-]{0,31}", name)
    study = tmp_path / name
    rng = np.random.default_rng(0)
    for line in recipe.lines:
        for words in product_of((*recipe.common, *line)):
            cell = {key: value for key, value in words.items() if is_of_a_cell(key)}
            rates = words.get("lab.tune.lr", "[3e-3]").strip("[]").split(",")
            for number, lr in enumerate(rates):
                kind: dict[str, bool] = {}
                if len(rates) > 1:
                    kind = {"tuned": number == 1, "candidate": number != 1}
                losses = (2.0 + rng.random() + rng.random(3) / 10).tolist()
                cell_runs(study, cell, losses, lr=float(lr), **kind)
    done = build(study, against="", recipe=recipe)
    assert done.faults == ()
    assert done.agreements
    for one in done.agreements:
        if name == "composition":
            continue  # whose runs have configurations, which these have not
        assert one.agrees != "not run" or "nothing is a multiple" in one.why, one
    against = find(cells_of(read_study(study).runs), recipe.against)
    assert f"loss - {against.label}" in done.text


def test_no_line_sets_a_key_that_the_sweep_s_first_composition_lacks() -> None:
    """Hydra composes a sweep once without the groups that are swept: a key of such a group must be
    in the group's default then, or be swept itself.
    """
    for recipe in RECIPES.values():
        for line in recipe.lines:
            words = dict(word.split("=", 1) for word in (*recipe.common, *line))
            for key, value in words.items():
                group, dot, _ = key.partition(".")
                is_lacking = dot and "," in words.get(group, "") and "," not in value
                assert not is_lacking, (recipe.name, line, key)
