"""Figures of the LLM path: the loader from the page cache, tokenising beside the library alone.

    python tests/bench/llm.py [FIGURE ...] [mb=40] [rounds=3] [root=DATA] [disk=FOLDER]

Names: loader_tokens_per_s, tokenise_vs_tokenizers, tokens_vs_torchtitan, start_s (and resume_s),
checkpoint_s. `root` is a folder like PWW_DATA: real text and a real tokenizer are taken from it
where it has them, else Python's own documentation and a BPE.
"""

import gzip
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
from figures import figure, machine

from pww.config.schema import Data
from pww.data import prepare
from pww.data.pydocs import PythonDocs
from pww.data.shards import Shards, ShardWriter
from pww.data.sources import documents
from pww.data.tokenizer import train_bpe

SEQ_LEN = 2048
FILE_BYTES = 24 << 20
BATCH = 2048
"""Documents that the library is given at a time: as many as keep every core busy."""
ALONE = """
import json, sys
from time import perf_counter, process_time
from tokenizers import Tokenizer
tokenizer, *files = sys.argv[1:]
tokenizer = Tokenizer.from_file(tokenizer)
texts = [json.loads(line)["text"] for name in files for line in open(name, encoding="utf-8")]
tokens, spent, used = 0, 0.0, 0.0
for start in range(0, len(texts), int(BATCH)):
    batch = texts[start : start + int(BATCH)]
    begin, cpu = perf_counter(), process_time()
    done = tokenizer.encode_batch(batch, add_special_tokens=False)
    spent += perf_counter() - begin
    used += process_time() - cpu
    tokens += sum(len(one) for one in done) + len(done)
print(json.dumps([tokens, spent, used]))
""".replace("BATCH", repr(BATCH))


@dataclass(frozen=True)
class Size:
    """How much text, and how often."""

    num_mb: int
    rounds: int


def loader_tokens_per_s(root: Path, disk: Path, size: Size) -> None:
    """Batches of windows drawn at random, as training gets them; one core, warm page cache."""
    import torch

    from pww.trainer import titan_cpu

    titan_cpu.install("cpu")
    from pww.trainer.titan_data import WindowLoader

    torch.set_num_threads(1)
    width, batch = SEQ_LEN + 1, 8
    for dtype, bits in (("uint16", 16), ("uint32", 32)):
        with tempfile.TemporaryDirectory(dir=disk) as name:
            folder, num = Path(name), (256 << 20) // (width * bits // 8)
            tokens = np.arange(num * width, dtype=np.uint32) % 65_521
            with ShardWriter(folder, stem="train", window_tokens=width, dtype=dtype) as writer:
                writer.add(tokens)
                shards = writer.finish()
            reader = Shards(folder, shards, window_tokens=width, dtype=dtype, what="training")
            ids = np.random.default_rng(0).permutation(num).tolist()
            loader = WindowLoader(
                WindowLoader.Config(), dp_world_size=1, dp_rank=0, tokenizer=None, seq_len=SEQ_LEN,
                local_batch_size=batch, snapshot_every_n_steps=None,
            )  # fmt: skip
            took = []
            for _ in range(4):  # the first one fills the page cache
                loader.assign(_Windows(reader), ids)
                begin, total = perf_counter(), 0
                for inputs, labels in loader:
                    total += labels.numel()
                    assert inputs["input"].shape == labels.shape
                took.append((perf_counter() - begin) / total)
            value = 1 / min(took[1:]) / 1e6
            figure(f"loader_tokens_per_s_{dtype}", value, "M tokens/s, one core", ">= 50")


class _Windows:
    def __init__(self, shards: Shards) -> None:
        self.windows = shards.read


def tokenise_vs_tokenizers(root: Path, disk: Path, size: Size) -> None:
    """All of `prepare` from packed files, against `encode_batch` on the same texts in memory."""
    with tempfile.TemporaryDirectory(dir=disk) as name:
        folder = Path(name)
        tokenizer, texts = _real(root) or _embedded(folder)
        plain, packed = [], []
        for i, lines in enumerate(_files(texts, size.num_mb << 20)):
            plain.append(folder / f"{i:03d}.jsonl")
            plain[-1].write_bytes(lines)
            packed.append(folder / f"{i:03d}.json.gz")
            packed[-1].write_bytes(gzip.compress(lines, 6))
        ratios, cpus, rates = [], [], []
        for _ in range(size.rounds):  # in turn, so that what else the machine does hits both
            out = subprocess.run(
                [sys.executable, "-c", ALONE, str(tokenizer), *map(str, plain)],
                check=True, capture_output=True, text=True,
            ).stdout  # fmt: skip
            tokens, alone_s, alone_cpu_s = json.loads(out)
            begin, cpu = perf_counter(), _cpu_s()
            made = prepare(
                _data(folder, tokenizer), seq_len=SEQ_LEN, vocab_multiple=256, project=folder
            ).manifest
            took_s, cpu_s = perf_counter() - begin, _cpu_s() - cpu
            # A part's end is a token too, and a document that is cut in two may have more
            assert abs(made.num_tokens - tokens) < 0.001 * tokens, (made.num_tokens, tokens)
            ratios.append((made.num_tokens / took_s) / (tokens / alone_s))
            cpus.append((made.num_tokens / cpu_s) / (tokens / alone_cpu_s))
            rates.append(made.num_tokens / took_s)
            shutil.rmtree(folder / "cache")
        load = {
            "tokens": tokens,
            "alone_s": alone_s,
            "took_s": took_s,
            "ratios": ratios,
            "cpu": cpus,
        }
        print(json.dumps(load), flush=True)
        cores = len(os.sched_getaffinity(0))
        figure(
            "tokenise_tokens_per_s",
            sorted(rates)[len(rates) // 2] / 1e6,
            f"M tokens/s, {cores} cores",
            "-",
        )
        what = "of encode_batch alone"
        figure(
            "tokenise_vs_tokenizers_cpu", sorted(cpus)[len(cpus) // 2], f"{what}, by CPU", ">= 0.9"
        )
        figure("tokenise_vs_tokenizers", sorted(ratios)[len(ratios) // 2], what, ">= 0.9")


def _cpu_s() -> float:
    """Of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _data(folder: Path, tokenizer: Path) -> Data:
    return Data.model_validate(
        {
            "name": "bench", "kind": "jsonl", "files": ("*.json.gz",), "roots": (str(folder),),
            "cache": "cache", "tokenizer": {"kind": "file", "path": str(tokenizer)},
            "held_out": 0.01, "max_windows": 0, "column": "text",
            "workers": len(os.sched_getaffinity(0)),
        }
    )  # fmt: skip


def _real(root: Path) -> tuple[Path, list[str]] | None:
    """The GPT-2 tokenizer, web pages, and pages of novels, if they are there."""
    tokenizer = root / "tokenizers" / "gpt2" / "tokenizer.json"
    pages = sorted(root.glob("text/c4/*.jsonl"))
    if not (tokenizer.is_file() and pages):
        return None
    texts = [json.loads(line)["text"] for path in pages for line in path.open(encoding="utf-8")]
    for novel in sorted(root.glob("text/gutenberg/*.txt")):
        text = novel.read_text()
        texts += [text[i : i + 3000] for i in range(0, len(text), 3000)]
    return tokenizer, texts


def _embedded(folder: Path) -> tuple[Path, list[str]]:
    texts = list(documents(PythonDocs()))
    path = folder / "tokenizer.json"
    path.write_bytes(train_bpe(texts, vocab_size=8192).json)
    return path, texts


def _files(texts: list[str], num_bytes: int) -> Iterator[bytes]:
    """JSON lines, the texts again and again, in files of the size that a shard of C4 has."""
    lines: list[bytes] = []
    size = total = 0
    while total < num_bytes:
        for text in texts:
            lines.append(json.dumps({"text": text, "url": "https://example"}).encode() + b"\n")
            size += len(lines[-1])
            if size >= min(FILE_BYTES, num_bytes // 4) or total + size >= num_bytes:
                yield b"".join(lines)
                total, size = total + size, 0
                lines = []
            if total >= num_bytes:
                return


def training(root: Path, disk: Path, size: Size) -> None:
    """A phase beside torchtitan's own loop; see `llm_trainer`, which alone imports torch."""
    from llm_trainer import tokens_vs_torchtitan

    tokens_vs_torchtitan()


def starting(root: Path, disk: Path, size: Size) -> None:
    """From the command to the first step, of a new run and of one that goes on."""
    from llm_start import start_s

    start_s(disk, rounds=size.rounds)


def checkpoints(root: Path, disk: Path, size: Size) -> None:
    """What a checkpoint keeps training from, written before the next phase or beside it."""
    from llm_checkpoint import checkpoint_s

    checkpoint_s(disk, rounds=size.rounds)


FIGURES: dict[str, Callable[[Path, Path, Size], None]] = {
    "loader_tokens_per_s": loader_tokens_per_s,
    "tokenise_vs_tokenizers": tokenise_vs_tokenizers,
    "tokens_vs_torchtitan": training,
    "start_s": starting,
    "checkpoint_s": checkpoints,
}


def main(words: list[str]) -> None:
    """Measures what was named, or everything."""
    options = dict(word.split("=", 1) for word in words if "=" in word)
    names = [word for word in words if "=" not in word] or list(FIGURES)
    root = Path(options.get("root", os.environ.get("PWW_DATA", "data")))
    disk = Path(options.get("disk", tempfile.gettempdir()))
    print(json.dumps({"machine": machine(), "load": os.getloadavg()[0]}), flush=True)
    for name in names:
        FIGURES[name](
            root, disk, Size(int(options.get("mb", "40")), int(options.get("rounds", "3")))
        )


if __name__ == "__main__":
    main(sys.argv[1:])
