"""Each thing that a run needs, found good or bad, by name."""

import json
from pathlib import Path

import pytest

from pww import doctor
from pww.clock import ManualClock
from pww.config import paths
from pww.config.load import compose
from pww.data import prepare
from pww.launcher import preflight

SLURM = ["site=slurm", "site.queue.partition=gpu", "site.ranks_per_node=1"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "PROJECT", tmp_path)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in ("HTTP_PROXY", "http_proxy", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)


def told(*words: str, clock: ManualClock | None = None) -> dict[str, preflight.Finding]:
    found = preflight.findings(compose(list(words)), clock=clock or ManualClock())
    return {one.what: one for one in found}


def test_a_laptop_without_a_corpus_is_usable(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "local: usable"
    (corpus,) = [line for line in lines if line.startswith("? data")]
    assert "make it with: python -m pww.data tokenize data=pydocs" in corpus
    assert not [line for line in lines if line.startswith(("  signal", "  queue"))]
    assert any("torchtitan" in line and line.startswith("  code") for line in lines)


def test_json_has_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(["json=true", "replica=b"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["site"], found["usable"]) == ("local", True)
    assert {"site", "runs", "corpora", "home", "code", "data"} == {
        one["what"] for one in found["findings"]
    }


def test_a_wrong_configuration_is_said_as_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(["sit=lumi"]) == 2
    assert "sit=lumi: no such key or group" in capsys.readouterr().err
    assert doctor.main(["--help"]) == 0


def test_inside_a_job_its_commands_are_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A login node needs them, a rank's container has none."""
    monkeypatch.setenv("PATH", str(tmp_path))
    python = f"site.queue.python={tmp_path}/python"
    lacking = [one.told for one in preflight._programs(compose([*SLURM, python]))]
    assert [one.split(":")[0] for one in lacking] == [
        "sbatch", "srun", "squeue", "scancel", f"{tmp_path}/python",
    ]  # fmt: skip
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    (one,) = preflight._programs(compose([*SLURM, python]))
    assert one.told.startswith(f"{tmp_path}/python: site.queue.python needs it")
    (tmp_path / "python").touch()
    (one,) = preflight._programs(compose([*SLURM, python]))
    assert (one.state, one.told) == ("good", "slurm, inside job 4711: nothing is missing")


def test_a_corpus_and_its_tokenizer_are_told_by_digest(tmp_path: Path) -> None:
    """They are what registration compares: two sites that show the same go together."""
    words = [
        "data=tinyshakespeare", "data.name=sample", "data.files=[text.txt]", "data.roots=[.]",
        "data.tokenizer.vocab_size=300", "model.seq_len=32",
    ]  # fmt: skip
    lines = (f"line {i} of {i * 7919 % 97}\n" for i in range(3000))
    (tmp_path / "text.txt").write_text("".join(lines))
    assert "tokenizer" not in told(*words)
    config = compose(words)
    made = prepare(config.text, seq_len=32, vocab_multiple=config.model.vocab_multiple,
                   project=tmp_path).manifest  # fmt: skip
    found = told(*words)
    assert found["data"].told == (f"sample: {made.num_windows} windows, digest {made.digest[:16]}")
    assert found["tokenizer"].told == (
        f"digest {made.tokenizer[:16]}, vocabulary of {made.vocab_size}"
    )
    # One that is given has a digest before there is a corpus of it
    (file,) = tmp_path.rglob("tokenizer.json")
    given = [*words[:4], "data.name=other", "data/tokenizer=file", f"data.tokenizer.path={file}"]
    found = told(*given)
    assert found["data"].state == "warning"
    assert found["tokenizer"].told == f"{file}: digest {made.tokenizer[:16]}"
    file.write_text("{}")
    assert told(*given)["tokenizer"].state == "bad"
