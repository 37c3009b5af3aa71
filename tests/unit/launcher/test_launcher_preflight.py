"""Each thing that a run needs, found good or bad, by name."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from pww import doctor
from pww.clock import ManualClock
from pww.config import paths
from pww.config.load import compose
from pww.launcher import preflight

DATE = "Sun, 09 Sep 2001 01:46:40 GMT"  # where ManualClock starts
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


def test_a_folder_that_may_not_be_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight.os, "access", lambda path, mode: False)
    one = told()["runs"]
    assert one.state == "bad"
    assert "may not be written to; give another folder" in one.told


def test_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    class Space:
        f_bavail, f_frsize, f_files, f_favail = 100, 4096, 10**6, 10**6

    monkeypatch.setattr(preflight.os, "statvfs", lambda path: Space())
    assert (told()["runs"].state, told()["home"].state) == ("bad", "bad")
    Space.f_bavail = 10**6
    assert told()["runs"].state == "warning"
    Space.f_bavail, Space.f_favail = 10**9, 100
    assert told()["runs"].state == "bad"
    Space.f_files = 0  # a file system that does not count them
    assert told()["runs"].state == "good"


@pytest.mark.parametrize(
    ("said", "state", "sentence"),
    [
        ("up 2-00:00:00", "good", "partition gpu is up, at most 2-00:00:00, arrays of 1001"),
        ("drain 1:00", "warning", "partition gpu is drain"),
        ("", "bad", "site.queue.partition=gpu: Slurm knows no such partition"),
    ],
)
def test_the_queue(
    said: str, state: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {"sinfo": said, "scontrol": "MaxArraySize = 1001"}.items():
        (tmp_path / name).write_text(f"#!/bin/bash\necho '{text}'\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    one = told(*SLURM)["queue"]
    assert (one.state, one.told) == (state, sentence)
    (tmp_path / "sinfo").write_text("#!/bin/bash\necho no controller >&2; exit 1\n")
    assert told(*SLURM)["queue"].told.endswith("failed: no controller")


@pytest.fixture
def port() -> Iterator[int]:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response_only(401)
            self.send_header("Date", DATE)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


def test_each_port_of_the_central_and_its_clock(port: int) -> None:
    words = [
        f"central.url=http://127.0.0.1:{port}", f"central.port={port}",
        f"central.aggregator_port={port}", "central.blob_port=1",
    ]  # fmt: skip
    clock = ManualClock()
    found = told(*words, clock=clock)
    assert found["leases"].told == f"http://127.0.0.1:{port}: answers, round trip 0 ms"
    assert found["deltas"].state == "good"
    assert found["blobs"].state == "bad"
    assert found["blobs"].told.startswith("http://127.0.0.1:1: no answer (")
    assert (found["clock"].state, found["clock"].told) == ("good", "+0 s against the central's")
    clock.jump_wall(-60)
    late = told(*words, clock=clock)["clock"]
    assert (late.state, late.told) == ("warning", "-60 s against the central's")


def test_a_bundle_that_is_none(tmp_path: Path) -> None:
    words = ["central.url=https://central.example:29510", f"central.bundle={tmp_path}/nothing"]
    one = told(*words)["central"]
    assert one.state == "bad"
    assert "nothing" in one.told


def test_a_proxy_is_named_without_its_secret() -> None:
    assert preflight._without_secret("http://me:secret@proxy:3128") == "http://…@proxy:3128"
