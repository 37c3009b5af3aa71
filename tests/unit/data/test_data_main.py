"""`python -m pww.data`: its words, what it prints, and that training finds what it made."""

import json
import os
import subprocess
import sys
import types

import pytest

import pww.data
from pww.config.load import compose
from pww.config.paths import PROJECT
from pww.data import __main__ as app
from pww.data import prepare


@pytest.fixture
def words(tmp_path, lines):
    """Names a small corpus of two files of JSON lines."""
    rows = [json.dumps({"body": lines(i, i + 30)}) + "\n" for i in range(0, 900, 30)]
    (tmp_path / "a.jsonl").write_text("".join(rows[:20]))
    (tmp_path / "b.jsonl").write_text("".join(rows[20:]))
    return [
        "data=jsonl", "data.column=body", f"data.roots=[{tmp_path}]", f"data.cache={tmp_path}/c",
        "data.name=mine", "data.tokenizer.vocab_size=300", "data.held_out=0.1", "model.seq_len=32",
    ]  # fmt: skip


def run(*words, cwd=PROJECT):
    return subprocess.run(
        [sys.executable, "-m", "pww.data", *words],
        cwd=cwd, env=os.environ | {"PYTHONPATH": str(PROJECT)}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip


def test_a_corpus_is_shown_when_it_was_made_and_training_finds_it(words, tmp_path, caplog):
    done = run("show", *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert "corpus 'mine' is not tokenised for these settings: there is no " in done.stderr
    assert f"; make it with: python -m pww.data tokenize {' '.join(words[:2])} " in done.stderr
    assert "Traceback" not in done.stderr

    entry = done.stderr.split("there is no ")[1].split(";")[0]
    os.makedirs(f"{entry}.pieces")
    assert f"{entry} (a build was begun and cut off); make it" in run("show", *words).stderr

    done = run(words[0], "tokenize", *words[1:], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("train on it with: python -m pww.train data=js")

    assert "already" not in done.stderr

    config = compose(words)
    caplog.set_level("INFO")
    corpus = prepare(
        config.data, seq_len=config.model.seq_len, vocab_multiple=config.model.vocab_multiple,
        project=PROJECT,
    )  # fmt: skip
    assert caplog.messages == ["corpus mine was tokenised already"]  # nothing was made
    assert corpus.manifest.digest in done.stdout

    done = run("show", *words, "window=3")
    assert done.returncode == 0, done.stderr
    for part in (
        corpus.manifest.digest,
        "30 documents (0 empty ones left out)",
        f"{corpus.manifest.num_windows:,} to train on, {corpus.manifest.num_held_out} held out, 0",
        f"300 ids, padded to {corpus.manifest.padded_vocab};",
        f"window 3:\n{corpus.decode(corpus.windows([3])[0])}",
    ):
        assert part in done.stdout

    done = run("show", *words, "held_out=true", "json=true")
    told = json.loads(done.stdout)
    assert told["manifest"]["digest"] == corpus.manifest.digest
    assert told["folder"] == str(corpus.folder)
    held = corpus.held_out([0])[0]
    assert told["sample"]["ids"] == held.tolist()
    assert told["sample"]["text"] == corpus.decode(held)

    done = run("show", *words, "window=100000")
    assert (done.returncode, done.stdout) == (1, "")
    assert "training window 100000 does not exist: this corpus has" in done.stderr


def test_a_stop_says_how_to_go_on(words, monkeypatch, capsys):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("pww.data.corpus.build", stopped)
    monkeypatch.setattr("pww.log.setup", lambda **_: None)
    assert app.main(["tokenize", *words]) == 130
    assert capsys.readouterr().err == "stopped; the same command goes on from what is done\n"


def test_a_corpus_that_is_there_is_verified_and_mended_if_asked(words, monkeypatch, capsys):
    monkeypatch.setattr("pww.log.setup", lambda **_: None)
    assert app.main(["tokenize", *words]) == 0
    made = capsys.readouterr().out
    assert "whole" not in made
    assert app.main(["tokenize", *words]) == 0
    assert capsys.readouterr().out == (
        f"corpus mine was there and is whole: every file has its manifest's SHA-256\n{made}"
    )
    config = compose(words)
    folder = prepare(
        config.data, seq_len=config.model.seq_len, vocab_multiple=config.model.vocab_multiple,
        project=PROJECT,
    ).folder  # fmt: skip
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for name in ("train-00000.npy", "held_out-00000.npy"):
        with (folder / name).open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\xff")
    assert app.main(["tokenize", *words]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    *shards, remedy = told.err.splitlines()
    sums = {shard.name: shard.sha256 for shard in _manifest(folder).shards}
    assert shards[0].startswith(f"{folder}/train-00000.npy: SHA-256 ")
    assert shards[0].endswith(f"…, its manifest says {sums['train-00000.npy'][:16]}…")
    assert shards[1].startswith(f"{folder}/held_out-00000.npy: SHA-256 ")
    assert remedy == (
        "corpus mine is damaged: do not train on it; to tokenise it again: python -m pww.data "
        f"tokenize {' '.join(words)} mend=true"
    ).replace(words[2], f"'{words[2]}'")
    assert app.main(["tokenize", *words, "mend=true"]) == 0
    told = capsys.readouterr()
    assert told.out == made
    assert told.err.splitlines()[2] == "corpus mine is damaged: it is tokenised again"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    # What is no file any more, or no manifest, is damage as well
    (folder / "train-00000.npy").unlink()
    assert app.main(["tokenize", *words]) == 1
    assert f"{folder}/train-00000.npy: No such file or directory\n" in capsys.readouterr().err
    (folder / "manifest.json").write_text("{}")
    assert app.main(["tokenize", *words, "mend=true"]) == 0
    assert "manifest.json is not a manifest of " in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def _manifest(folder):
    return pww.data.read_manifest(folder / "manifest.json")


def test_help_needs_neither_torch_nor_tokenizers():
    code = (
        "import sys\nfrom pww.data.__main__ import main\nassert main(['--help']) == 0\n"
        "print([m for m in ('torch', 'tokenizers', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True,
        timeout=120, env=os.environ | {"PYTHONPATH": str(PROJECT)},
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "[]"
    assert "python -m pww.data tokenize data=CORPUS [tokenizer=PATH] [mend=true]" in done.stdout


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        ([], "command: none; give one of tokenize, show (--help says more)"),
        (["data=c4"], "command: none; give one of tokenize, show (--help says more)"),
        (["tokenize", "show"], "command: tokenize show; give one of tokenize, show"),
        (["tokenise", "data=c4"], "command: tokenise; give one of tokenize, show (--help says mo"),
        (["tokenise", "data=c4"], "; did you mean tokenize?"),
        (["show", "window=-1"], "window=-1: the number of a window, from 0"),
        (
            ["show", "window=x", "json=yes"],
            "window=x: the number of a window, from 0\njson=yes: tr",
        ),
        (["show", "held_out=1"], "held_out=1: true or false"),
        (["tokenize", "mend=yes"], "mend=yes: true or false"),
        (["show", "mend=true"], "mend=true: no such key or group"),
        (["tokenize", "dry=true"], "dry=true: python -m pww.data show says whether a corpus is"),
        (["tokenize", "resume=auto"], "resume=auto: tokenising goes on by itself from what is do"),
        (["tokenize", "window=3"], "window=3: no such key or group"),
        (
            ["tokenize", "data.column=x"],
            "data.column=x: data.kind=pydocs has no columns or keys; use text",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(argv, reason, capsys):
    code = app.main(argv)
    told = capsys.readouterr()
    assert told.out == ""
    assert reason in told.err
    assert code in (1, 2)


def test_the_package_has_these_names_and_no_others():
    for name in pww.data.__all__:
        assert isinstance(getattr(pww.data, name), type | types.FunctionType)
    with pytest.raises(AttributeError, match=r"module 'pww.data' has no attribute 'torch'"):
        pww.data.torch  # noqa: B018
