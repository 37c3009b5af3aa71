"""`dry=true` names what a run would miss later: text, tokenizers, configurations, keys."""

import json
import sys
from pathlib import Path

import pytest

from pww import train
from pww.clock import ManualClock
from pww.config.load import compose
from pww.launcher import missing as module
from pww.launcher.missing import missing


def told(*words: str) -> list[str]:
    return missing(compose(["data=text", "data.files=[own.txt]", *words]), ManualClock())


@pytest.fixture
def roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own.txt").write_text("text")
    monkeypatch.chdir(tmp_path)
    return f"data.roots=[{tmp_path}]"


def test_nothing_is_missing(roots: str, tmp_path: Path) -> None:
    assert missing(compose(), ManualClock()) == []
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.json").write_text('{"model_type": "llama"}')
    sets = "evaluation.sets=[{name: own, kind: text, files: [own.txt]}]"
    for model in ("model=hf/gpt2", f"model=hf/folder model.config={tmp_path / 'folder'}"):
        assert told(roots, sets, *model.split()) == []


def test_images_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["model=resnet18", f"data.roots=[{tmp_path}]"]
    (far,) = missing(compose(words), ManualClock())
    assert far.startswith(
        f"no folder cifar10 (data.kind) in any of data.roots; looked for {tmp_path}"
    )
    (tmp_path / "cifar10").mkdir()
    assert missing(compose(words), ManualClock()) == []
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "sklearn", raising=False)
    (digits,) = missing(compose(["model=resnet_digits"]), ManualClock())
    assert digits.startswith("data=digits needs the images that scikit-learn brings")


def test_text_and_tokenizers_are_looked_for(roots: str, tmp_path: Path) -> None:
    sets = "evaluation.sets=[{name: far, kind: text, files: [far.txt]}]"
    tokenizer = ("data/tokenizer=file", "data.tokenizer.path=gone.json")
    own, lost, other = told(roots, "data.files=[lost.txt]", sets, *tokenizer)
    assert own.startswith(f"no file matches 'lost.txt' (data.files); looked in {tmp_path}; set ")
    assert lost.startswith("no tokenizer 'gone.json' (data.tokenizer.path); looked for ")
    assert other.startswith("evaluation set far: no file matches 'far.txt' (data.files); looked ")
    (tmp_path / "bad.json").write_text("{")
    (bad,) = told(roots, "data/tokenizer=file", f"data.tokenizer.path={tmp_path}/bad.json")
    assert bad.startswith(f"{tmp_path}/bad.json is not a tokenizer.json: ")


REMEDY = "; give a folder with a config.json, or a model type of transformers such as gpt2"


def test_a_models_folder_is_looked_for(roots: str, tmp_path: Path) -> None:
    def of(config: str) -> list[str]:
        return told(roots, "model=hf/folder", f"model.config={config}")

    here, folder = tmp_path.resolve(), tmp_path / "made"
    assert of("sub/none") == [f"model.config=sub/none: there is no folder {here}/sub/none{REMEDY}"]
    folder.mkdir()
    assert of("made/") == [
        f"model.config=made/: {here}/made/config.json: No such file or directory{REMEDY}"
    ]
    (folder / "config.json").write_text("{")
    (fault,) = of("made")
    assert fault.startswith("model.config=made: its config.json is not JSON (Expecting ")
    (folder / "config.json").write_text(json.dumps({"hidden_size": 8}))
    assert of("made") == [f"model.config=made: its config.json names no model_type{REMEDY}"]
    assert of("made/config.json") == [f"model.config=made/config.json: is a file{REMEDY}"]


def test_transformers_and_keys_are_looked_for(
    roots: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    central = ("central.url=https://127.0.0.1:1", f"central.bundle={tmp_path}/keys")
    package, keys = told(roots, "model=hf/gpt2", *central)
    assert package == "model=gpt2: needs transformers; pip install 'pww[hf]'"
    assert f"{tmp_path}/keys/ca.pem" in keys


def test_a_dry_start_tells_all_of_it_and_is_a_fault(
    roots: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = "evaluation.sets=[{name: far, kind: text, files: [far.txt]}]"
    words = ["data=text", "data.files=[lost.txt]", roots, sets, "dry=true"]
    for site in ("local", "lumi"):
        assert train.start([*words, f"site={site}"]) == 2
        out, err = capsys.readouterr()
        lines = [line for line in err.splitlines() if "it would not train" in line]
        assert [line.partition(" (data.files)")[0] for line in lines] == [
            "dry: it would not train: no file matches 'lost.txt'",
            "dry: it would not train: evaluation set far: no file matches 'far.txt'",
        ]
        assert ("#!/bin/bash" in out) is (site == "lumi")
