"""Whether a published corpus is, bit for bit, what its manifest says. Reads all of it."""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pww.clock import Clock
from pww.data.build import TOKENIZER_FILE
from pww.data.manifest import FILE, Manifest, read_manifest
from pww.data.progress import progress
from pww.errors import DataError


def damage(folder: Path, *, clock: Clock) -> list[str]:
    """A sentence for each file of the corpus in `folder` that is not as it was written; [] if none.

    On all cores. Sizes and headers, which `Corpus` looks at, tell nothing of the tokens between.
    """
    try:
        made = read_manifest(folder / FILE)
    except DataError as fault:
        return [str(fault)]
    total = sum(shard.size_bytes for shard in made.shards + made.held_out)
    found: list[str] = []
    with (
        ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool,  # hashing lets go of the lock
        progress("verifying", total=total, clock=clock, unit="bytes") as advance,
    ):
        for wrong, size in pool.map(lambda file: _looked(folder / file[0], file[1]), _files(made)):
            advance(size)
            found += [wrong] if wrong else []
    return found


def _files(made: Manifest) -> list[tuple[str, str]]:
    """Every file beside the manifest, and its SHA-256."""
    shards = ((shard.name, shard.sha256) for shard in made.shards + made.held_out)
    return [(TOKENIZER_FILE, made.tokenizer), *shards]


def _looked(path: Path, wanted: str) -> tuple[str, int]:
    """What is wrong with a file, "" if nothing, and the bytes that were read."""
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = file.tell()
    except OSError as fault:
        return f"{path}: {fault.strerror}", 0
    if digest == wanted:
        return "", size
    return f"{path}: SHA-256 {digest[:16]}…, its manifest says {wanted[:16]}…", size
