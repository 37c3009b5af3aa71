"""What `pww.train` refuses besides the configuration's own faults."""

from pathlib import Path

import pytest

from pww.config.load import compose
from pww.config.paths import freeze
from pww.errors import ConfigError
from pww.train import settle


def test_overlap_is_for_who_has_a_central(tmp_path: Path) -> None:
    words = ("diloco.overlap=true", f"run.root={tmp_path}")
    with pytest.raises(ConfigError) as fault:
        settle(compose(words), frozenset())
    assert list(fault.value.faults) == [
        "diloco.overlap=true: a replica alone has no network to hide and would only use each theta "
        "a phase late; give central.url=https://HOST:PORT, or leave it out"
    ]
    config = compose((*words, "central.url=http://127.0.0.1:29510"))
    assert settle(config, frozenset()).diloco.overlap
    assert not compose().diloco.overlap


def test_a_key_without_effect_is_refused_and_a_stored_schedule_decides_of_a_resumed_run(
    tmp_path: Path,
) -> None:
    words = (f"run.root={tmp_path}", "optim.decay_share=0.3")
    given = frozenset({"run.root", "optim.decay_share"})
    with pytest.raises(ConfigError, match=r"^optim\.decay_share=0\.3: has no effect with "):
        settle(compose(words), given)
    settle(compose((*words, "optim.decay=wsd")), given)
    (tmp_path / "old").mkdir()
    freeze(compose((*words, "optim.decay=wsd")), tmp_path / "old")
    resumed = settle(compose((*words, f"resume={tmp_path}/old")), given)
    assert (resumed.optim.decay, resumed.optim.decay_share) == ("wsd", 0.3)


def test_a_models_folder_is_kept_by_its_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt").mkdir()
    words = (f"run.root={tmp_path}/runs", "model=hf/folder", "model.config=gpt")
    given = frozenset({"run.root", "model", "model.config"})
    first = settle(compose(words), given)
    assert first.model.model_dump()["config"] == f"{tmp_path}/gpt"
    run = tmp_path / "runs" / "x"
    (run / "checkpoints").mkdir(parents=True)
    freeze(first, run)
    assert settle(compose((*words, "resume=auto")), given).resume == str(run), "the same words"
    monkeypatch.chdir(tmp_path / "gpt")
    elsewhere = settle(compose((words[0], f"resume={run}")), frozenset({"run.root"}))
    assert elsewhere.model == first.model
    assert (
        settle(compose((words[0], "model=hf/gpt2")), given).model.model_dump()["config"] == "gpt2"
    )
