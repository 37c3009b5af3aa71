"""Any number of workers, any ruling into pieces, any cut: one corpus; and what a worker says."""

import dataclasses
import errno
import gzip
import json
import os
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import zstandard

from pww.data import prepare
from pww.data.kept import Kept
from pww.data.orders import Job
from pww.data.pieces import Span
from pww.data.pool import Order, _started, num_processes, workers_for
from pww.data.sources import open_source
from pww.data.tokenizer import train_bpe
from pww.data.work import Cut, Text
from pww.errors import DataError, WorkerLost
from pww.folder import owned


@pytest.fixture
def text(tmp_path, settings, lines):
    """JSON lines in three kinds of files, with empty documents and one far longer than a piece."""
    texts = [lines(i, i + 1 + i % 30) for i in range(0, 2400, 12)]
    texts[50:50] = ["", " \n"]
    texts[90] = lines(0, 700)
    for name, part in (
        ("a.jsonl", texts[:80]),
        ("b.jsonl.gz", texts[80:120]),
        ("c.jsonl.zst", texts[120:]),
    ):
        data = "".join(json.dumps({"text": text}) + "\n" for text in part).encode()
        if name.endswith("gz"):
            data = gzip.compress(data)
        elif name.endswith("zst"):
            data = zstandard.ZstdCompressor().compress(data)
        (tmp_path / "text" / name).write_bytes(data)

    def make(**changes):
        return settings(kind="jsonl", files=("*.jsonl*",), **changes)

    return make


def made(data, tmp_path):
    corpus = prepare(data, seq_len=16, vocab_multiple=64, project=tmp_path)
    files = {p.name: p.read_bytes() for p in corpus.folder.iterdir()}
    assert not list(corpus.folder.parent.glob("*.pieces"))
    shutil.rmtree(corpus.folder)
    return files


def test_the_bytes_are_the_same_for_any_workers_and_pieces(text, tmp_path, monkeypatch):
    expected = made(text(), tmp_path)
    assert json.loads(expected["manifest.json"])["num_empty"] == 2
    for workers, size in ((0, 2000), (2, 3000)):
        monkeypatch.setattr("pww.data.pieces.PIECE_BYTES", size)
        assert made(text(workers=workers), tmp_path) == expected, (workers, size)


def test_small_corpora_are_tokenised_here_and_large_ones_on_every_core(text, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(6))
    (piece,) = open_source(text(), project=tmp_path).pieces()
    large = dataclasses.replace(piece, size_bytes=16 << 20)
    assert num_processes(0, [piece] * 9) == 0
    assert num_processes(0, [large] * 9) == 6
    assert num_processes(0, [large] * 4) == 4
    assert num_processes(3, [piece] * 9) == 3
    assert num_processes(3, [piece]) == 1


# ------------------------------------------------------------------------------- a build that stops


@pytest.fixture
def stopped(text, tmp_path, monkeypatch):
    """A build of many pieces that is cut off when `num` pieces are tokenised; its folder."""
    monkeypatch.setattr("pww.data.pieces.PIECE_BYTES", 3000)
    expected = made(text(), tmp_path)

    def stop(num):
        add = Kept.add

        def adding(self, piece, done):
            add(self, piece, done)
            if not isinstance(done, Text) and len(list(self.folder.glob("*.train"))) >= num:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Kept, "add", adding)
            with pytest.raises(KeyboardInterrupt):
                made(text(), tmp_path)
        (folder,) = (tmp_path / "cache").glob("*.pieces")
        assert not list((tmp_path / "cache").glob("*.part"))
        return folder

    return stop, expected


def reads(monkeypatch):
    """Notes every piece that is tokenised."""
    import pww.data.pool

    seen = []
    real = pww.data.pool.tokenise

    def noted(source, spans, cut, **rest):
        seen.append(spans)
        return real(source, spans, cut, **rest)

    monkeypatch.setattr(pww.data.pool, "tokenise", noted)
    return seen


def test_what_is_tokenised_is_not_done_again(stopped, text, tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO")
    stop, expected = stopped
    stop(3)
    num = len(open_source(text(), project=tmp_path).pieces())
    seen = reads(monkeypatch)
    monkeypatch.setattr("pww.data.build.train_bpe", lambda *_, **__: pytest.fail("trained again"))
    assert made(text(), tmp_path) == expected
    assert len(seen) == num - 3 > 0
    assert f"going on with a build that was cut off: 3 of {num} pieces are tokenised" in caplog.text


@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "torn line", "other text"])
def test_damaged_pieces_are_done_again(stopped, text, tmp_path, monkeypatch, caplog, damage):
    stop, expected = stopped
    folder = stop(3)
    path, log = sorted(folder.glob("*.train"))[1], folder / "done.jsonl"
    rows = log.read_bytes().splitlines(keepends=True)
    match damage:
        case "flip":
            data = bytearray(path.read_bytes())
            data[7] ^= 1
            path.write_bytes(data)
        case "cut":
            path.write_bytes(path.read_bytes()[:-2])
        case "gone":
            path.unlink()
        case "torn line":
            log.write_bytes(b"".join(rows[:-1]) + rows[-1][:-9])
        case "other text":
            rows[-1] = re.sub(rb'"num_chars":\d+', b'"num_chars":1', rows[-1])
            log.write_bytes(b"".join(rows))
    seen = reads(monkeypatch)
    assert made(text(), tmp_path) == expected
    num = len(open_source(text(), project=tmp_path).pieces())
    assert len(seen) == num - 2
    assert (damage == "torn line") or "is damaged: done again" in caplog.text


def test_lines_after_a_torn_one_are_read_again(stopped, text, tmp_path, monkeypatch):
    stop, expected = stopped
    log = stop(3) / "done.jsonl"
    log.write_bytes(log.read_bytes()[:-9])
    stop(5)
    seen = reads(monkeypatch)
    assert made(text(), tmp_path) == expected
    assert len(seen) == len(open_source(text(), project=tmp_path).pieces()) - 5


def test_pieces_of_another_ruling_are_not_used(stopped, text, tmp_path, monkeypatch):
    stop, expected = stopped
    stop(3)
    monkeypatch.setattr("pww.data.pieces.PIECE_BYTES", 4000)
    seen = reads(monkeypatch)
    assert made(text(), tmp_path) == expected
    assert len(seen) == len(open_source(text(), project=tmp_path).pieces())


def test_tokens_that_vanish_while_they_are_put_together_are_refused(text, tmp_path, monkeypatch):
    tokens = Kept.tokens
    monkeypatch.setattr(
        Kept, "tokens", lambda self, piece, *rest: [] if piece else tokens(self, piece, *rest)
    )
    monkeypatch.setattr("pww.data.pieces.PIECE_BYTES", 3000)
    with pytest.raises(DataError, match=r"holds [\d,]+ tokens for train, it should be [\d,]+: som"):
        made(text(), tmp_path)


def test_an_unfinished_build_of_other_settings_is_named(text, tmp_path, caplog):
    caplog.set_level("INFO")
    other = tmp_path / "cache" / "sample-0123.pieces"
    other.mkdir(parents=True)
    prepare(text(), seq_len=16, vocab_multiple=64, project=tmp_path)
    assert f"{other} is of an unfinished build with other settings; delete it if" in caplog.text
    assert other.is_dir()


def test_a_build_that_goes_on_is_not_called_unfinished(text, tmp_path, caplog):
    caplog.set_level("INFO")
    other = tmp_path / "cache" / "sample-0123.pieces"
    other.mkdir(parents=True)
    with owned(tmp_path / "cache" / "sample-0123.lock", remedy="wait"):
        prepare(text(), seq_len=16, vocab_multiple=64, project=tmp_path)
    assert f"{other} is in use by another process, which makes that corpus" in caplog.text
    assert "delete" not in caplog.text
    # its lock is still there, and free
    prepare(text(), seq_len=17, vocab_multiple=64, project=tmp_path)
    assert f"{other} is of an unfinished build with other settings; delete it if" in caplog.text


# ------------------------------------------------------------------------------ what a worker says


@pytest.fixture
def worker(text, tmp_path):
    """A started process over the sample text, its job's folder beside it."""
    folder = tmp_path / "kept"
    folder.mkdir()
    tokenizer = train_bpe(["line says and"] * 9, vocab_size=280)
    (folder / "tokenizer.json").write_bytes(tokenizer.json)
    job = Job(data=text(), project=str(tmp_path), folder=str(folder))
    with _started(job, threads=1) as process:
        yield process, folder, open_source(text(), project=tmp_path)


CUT = Cut(start=0, section_chars=100, held_out=0.1, dtype="uint16")


def test_a_worker_counts_and_tokenises(worker):
    process, folder, source = worker
    (piece,) = source.pieces()
    heard = []
    counted = process.do(Order(0, piece), heard.append)
    assert (
        counted.num_chars
        == sum(heard)
        == sum(len(text) for text in source.read(piece.spans) if text.strip())
    )
    done = process.do(Order(7, piece, CUT), heard.append)
    assert done.text == counted
    train = np.fromfile(folder / "00007.train", "<u2")
    assert train.size == done.train.num_tokens > done.held_out.num_tokens > 0


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are seen in /proc")
def test_a_worker_of_one_thread_encodes_in_a_thread_of_the_librarys(worker):
    """Where the library's memory is apart from Python's, which is a sixth of the time."""
    process, _, source = worker
    (piece,) = source.pieces()
    process.do(Order(0, piece), lambda _: None)
    before = threads_of(process)
    process.do(Order(7, piece, CUT), lambda _: None)
    assert len(threads_of(process) - before) == 1


def threads_of(process):
    return set(os.listdir(f"/proc/{process._process.pid}/task"))


def test_what_a_library_prints_is_no_answer(text, tmp_path, monkeypatch, capfd):
    """It may do so while it is imported, and past Python's own streams."""
    noisy = 'import os\nprint("a stray line")\nos.write(1, b"another\\n")\n'
    (tmp_path / "sitecustomize.py").write_text(noisy)
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("PYTHONPATH", paths)
    (piece,) = open_source(text(), project=tmp_path).pieces()
    job = Job(data=text(), project=str(tmp_path), folder=str(tmp_path))
    with _started(job, threads=1) as process:
        assert process.do(Order(0, piece), lambda _: None).num_empty == 2
    said = capfd.readouterr()
    assert "another" in said.err
    assert said.out == ""


def test_a_workers_faults_are_the_same_as_here(worker, tmp_path):
    process, folder, source = worker
    (piece,) = source.pieces()
    path = tmp_path / "text" / "a.jsonl"
    path.write_text("{\n")
    with pytest.raises(DataError, match=f"^{path} line 1 is not JSON"):
        process.do(Order(0, piece), print)
    (folder / "00003.train").mkdir()
    path.write_text('{"text": "words"}\n')
    with pytest.raises(OSError, match=r"00003\.train") as fault:
        process.do(Order(3, piece, CUT), print)
    assert fault.value.errno == errno.EISDIR
    assert process.do(Order(0, piece), print).num_documents == 123  # and it goes on


def test_a_worker_that_dies_is_a_sentence(worker):
    process, _, source = worker
    process._process.send_signal(signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(WorkerLost) as fault:
            process.do(Order(0, source.pieces()[0]), print)
    assert str(fault.value) == (
        "a tokenising process ended early (SIGKILL), often for want of memory; start again, with"
        " fewer of them (data.workers=N) if need be: what is tokenised is kept"
    )


def test_a_worker_ends_when_nobody_talks_to_it(worker):
    process, *_ = worker
    process._in.close()
    assert process._process.wait(60) == 0


def test_a_fault_in_a_piece_ends_all(text, tmp_path, monkeypatch):
    monkeypatch.setattr("pww.data.pieces.PIECE_BYTES", 3000)
    with (tmp_path / "text" / "a.jsonl").open("a") as file:
        file.write("[]\n")
    with pytest.raises(
        DataError, match=r"a.jsonl line 81 has no string under 'text' \(it has list"
    ):
        made(text(workers=2), tmp_path)
    assert not list((tmp_path / "cache").glob("*.pieces"))  # with other text it is another corpus


def test_what_a_lost_worker_leaves_is_kept(text, tmp_path, monkeypatch):
    monkeypatch.setattr("pww.data.pieces.PIECE_BYTES", 3000)
    import pww.data.pool

    def lost(*_, **__):
        raise WorkerLost("gone")

    with monkeypatch.context() as patch:
        patch.setattr(pww.data.pool, "tokenise", lost)
        with pytest.raises(WorkerLost):
            made(text(), tmp_path)
    assert len(list((tmp_path / "cache").glob("*.pieces"))) == 1
    made(text(), tmp_path)


def test_workers_get_the_source_and_the_tokenizer_of_this_process(text, tmp_path):
    source = open_source(text(), project=tmp_path)
    with workers_for(
        source, text(), project=tmp_path, folder=tmp_path, tokenizer=lambda: pytest.fail("early")
    ) as workers:
        ((number, done),) = workers.run([Order(4, source.pieces()[0])], lambda _: None)
    assert number == 4
    assert isinstance(done, Text)
    assert done.num_empty == 2
    assert Span(0) in source.pieces()[0].spans
