"""Where things are."""

from pathlib import Path

import pytest

from pww.config import paths
from pww.config.load import compose


def test_the_tree_is_the_projects() -> None:
    assert (paths.CONF / "config.yaml").is_file()
    assert paths.CONF.parent == paths.PROJECT
    assert paths.run_folder(compose(["run.name=x"])) == paths.PROJECT / "outputs" / "x"


def test_a_path_is_shown_as_it_would_be_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert paths.shown(tmp_path / "a" / "b") == "a/b"
    assert paths.shown(Path("/elsewhere/x")) == "/elsewhere/x"


def test_the_wandb_id_is_drawn_once(tmp_path: Path) -> None:
    first = paths.wandb_id(tmp_path)
    assert len(first) == 16
    assert paths.wandb_id(tmp_path) == first
