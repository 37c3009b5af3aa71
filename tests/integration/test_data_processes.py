"""Real processes that prepare one corpus: at once, on any number of threads, killed anywhere."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import pww
from pww.folder import owned

REPOSITORY = Path(pww.__file__).parents[1]
PROGRAM = """
import json, os, resource, signal, sys
from pathlib import Path
import pww.data.pieces
import pww.log
from pww.config.schema import Data
from pww.data import prepare
from pww.errors import DataError

project, name, die_at, limit = sys.argv[1:]
pww.log.setup()

pww.data.pieces.PIECE_BYTES = int(os.environ.get("TEST_PIECE_BYTES", 1 << 20))
die_at, _, nth = die_at.partition("#")
left = int(nth or 1)

def die(event, args):
    global left
    if event in ("open", "os.rename") and args and str(args[0]).endswith(die_at):
        if event == "os.rename" or str(args[1])[0] in "wa":
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

if die_at:
    sys.addaudithook(die)
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
data = Data(
    name="sample", kind="text", files=(name,), roots=("text",), cache="cache", held_out=0.1,
    tokenizer={"kind": "bpe", "vocab_size": 700}, max_windows=500, column="text",
    workers=int(os.environ.get("TEST_WORKERS", 0)),
)
try:
    corpus = prepare(data, seq_len=32, vocab_multiple=64, project=Path(project))
except DataError as fault:
    sys.exit(str(fault))
first = corpus.windows([0, 1]).tolist()
print(json.dumps({"digest": corpus.manifest.digest, "folder": corpus.folder.name, "first": first}))
"""


def start(project, *, name="a.txt", die_at="", limit="", **environment):
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(project), name, die_at, limit],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)} | environment,
    )


def result(process):
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return json.loads(out), err


@pytest.fixture(scope="module")
def text():
    """About 300 kB with many different words."""
    words = [
        f"{a}{b}{c}" for a in ("re", "un", "over", "") for b in "abcdef" for c in ("ing", "ed", "s")
    ]
    return "".join(
        f"{i}: " + " ".join(words[i * k * k % len(words)] for k in range(1, 9)) + "\n"
        for i in range(6000)
    )


@pytest.fixture
def project(tmp_path, text):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text(text)
    (tmp_path / "text" / "b.txt").write_text(text.upper())
    return tmp_path


@pytest.fixture(scope="module")
def reference(tmp_path_factory, text):
    """What one undisturbed process makes of the text."""
    folder = tmp_path_factory.mktemp("reference")
    (folder / "text").mkdir()
    (folder / "text" / "a.txt").write_text(text)
    return result(start(folder))[0]


@pytest.mark.parametrize("threads", ["1", "2", "7"])
def test_the_corpus_is_the_same_on_any_number_of_threads(project, reference, threads):
    process = start(project, RAYON_NUM_THREADS=threads, PYTHONHASHSEED=threads)
    assert result(process)[0] == reference


def test_the_corpus_is_the_same_without_parallelism(project, reference):
    assert result(start(project, TOKENIZERS_PARALLELISM="false"))[0] == reference


def test_three_processes_build_once_and_agree(project, reference):
    entry = project / "cache" / reference["folder"]
    with owned(entry.with_name(entry.name + ".lock"), remedy="none"):
        processes = [start(project) for _ in range(3)]
        for process in processes:  # each is seen to wait before any may go on
            line = process.stderr.readline()
            assert f"waiting for another process that prepares {entry.name}" in line
        assert not entry.exists()
    results = [result(process) for process in processes]
    assert [found for found, _ in results] == [reference] * 3
    assert sum("tokenised sample in" in err for _, err in results) == 1


@pytest.mark.parametrize(
    "die_at",
    [
        "train-00000.npy",
        "held_out-00000.npy",
        "chosen-00000.npy",
        "tokenizer.json",
        "manifest.json",
        ".part",
    ],
)
def test_a_build_that_is_killed_leaves_only_garbage(project, reference, die_at):
    cache = project / "cache"
    process = start(project, die_at=die_at)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    assert not (cache / reference["folder"]).exists()
    part = cache / f"{reference['folder']}.part"
    assert part.is_dir()

    found, err = result(start(project))
    assert found == reference
    assert f"removed {part}, left over from a build that was cut off" in err
    assert not list(cache.glob("*.part"))


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_build_that_is_killed_goes_on_from_what_it_finished(project, text, workers):
    """The kill is at the line of the fourth piece that is tokenised."""
    step = len(text) // 6
    for i in range(6):
        part = text[i * step : (i + 1) * step] + f"the end of {i}\n"
        (project / "text" / f"part{i}.txt").write_text(part)
    options = {"name": "part*.txt", "TEST_WORKERS": workers, "TEST_PIECE_BYTES": "1"}
    process = start(project, die_at="done.jsonl#10", **options)
    _, err = process.communicate(timeout=120)  # so its workers have ended too: they share stderr
    assert process.returncode == -signal.SIGKILL, err
    (kept,) = (project / "cache").glob("*.pieces")
    found, err = result(start(project, **options))
    assert "going on with a build that was cut off: 3 of 6 pieces are tokenised" in err
    whole = project / "whole"
    (whole / "text").mkdir(parents=True)
    for i in range(6):
        (whole / "text" / f"part{i}.txt").write_bytes(
            (project / "text" / f"part{i}.txt").read_bytes()
        )
    assert result(start(whole, name="part*.txt"))[0] == found  # undisturbed, in one piece, alone
    assert not kept.exists()


def test_another_corpus_clears_the_garbage_too(project, reference):
    process = start(project, die_at="manifest.json")
    process.communicate(timeout=120)
    assert (project / "cache" / f"{reference['folder']}.part").is_dir()
    found, _ = result(start(project, name="b.txt"))
    assert found["digest"] != reference["digest"]
    assert not list((project / "cache").glob("*.part"))


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_disk_that_fills_up_is_one_sentence_and_publishes_nothing(project, reference, workers):
    process = start(project, limit="10000", TEST_WORKERS=workers)  # bytes a file may have
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    entry = project / "cache" / reference["folder"]
    assert err.splitlines()[-1] == (
        f"cannot write the tokenised corpus {entry}: File too large;"
        " make room there and start again (finished pieces are kept), or set data.cache to another"
        " folder"
    )
    assert "Traceback" not in err
    left = sorted(path.name for path in (project / "cache").iterdir())
    assert left == [f"{entry.name}.lock", f"{entry.name}.pieces"]
    assert result(start(project))[0] == reference
    assert not list((project / "cache").glob("*.pieces"))
