"""Every command line of every study that comes with the lab is one that the lab takes."""

import pytest

from pww.lab.app import start
from pww.lab.studies.catalogue import RECIPES

LINES = [(name, line) for name, recipe in RECIPES.items() for line in recipe.lines]


def shorter(word: str) -> str:
    """Of a sweep over numbers the last one: the others are of its kind."""
    key, _, value = word.partition("=")
    values = value.split(",")
    if value.startswith("[") or len(values) < 3:
        return word
    return f"{key}={values[-1]}"


@pytest.mark.parametrize(("name", "line"), LINES)
def test_a_line_is_composed_and_every_run_of_it_has_its_own_folder(
    name: str, line: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert start([*map(shorter, RECIPES[name].command(line)), "dry=true"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    runs = said.out.splitlines()
    assert len(set(runs)) == len(runs) >= 3
    assert all(f"/lab/{name}/" in run and ": seed " in run for run in runs)
