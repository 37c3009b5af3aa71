"""What a run of this configuration needs of the machine it is typed on, looked at one by one.

Nothing is made or queued, and nothing stays at the central. A finding is good, a warning, or bad:
with a bad one a job would not run, or would stop soon.
"""

import os
from collections.abc import Iterator

from pww.clock import Clock
from pww.config import paths
from pww.config.schema import Config, Images
from pww.errors import DataError
from pww.launcher import (
    bootstrap,
    identity,
    preflight_central,
    preflight_folders,
    preflight_queue,
    preflight_signal,
)
from pww.launcher.finding import Finding

IN_A_JOB = "SLURM_JOB_ID"


def findings(config: Config, *, clock: Clock) -> Iterator[Finding]:
    """Everything, in the order of what a run needs first."""
    yield from _programs(config)
    yield from preflight_folders.findings(config)
    yield _code()
    yield from _data(config)
    yield from preflight_queue.findings(config, clock=clock)
    yield from preflight_signal.findings(config)
    yield from preflight_central.findings(config, clock=clock)


def _programs(config: Config) -> Iterator[Finding]:
    lacking = bootstrap.unnamed(config.site)
    if IN_A_JOB not in os.environ:  # a compute node's container need not have them
        lacking += bootstrap.commands(config, environ=os.environ)
    lacking += bootstrap.interpreter(config)
    for sentence in lacking:
        yield Finding("site", "bad", sentence)
    if not lacking:
        where = f", inside job {os.environ[IN_A_JOB]}" if IN_A_JOB in os.environ else ""
        yield Finding("site", "good", f"{config.site.name}{where}: nothing is missing")


def _code() -> Finding:
    code, _ = identity.current()
    changed = " with changes" if code.changed else ""
    versions = ", ".join(f"{name} {version}" for name, version in code.packages.items())
    told = f"commit {code.commit[:12]}{changed}, Python {code.python}, {versions}"
    return Finding("code", "good", told)


def _data(config: Config) -> Iterator[Finding]:
    """What is trained on, by its digest: two sites that differ in one would be refused."""
    if isinstance(config.data, Images):
        yield _gallery(config.data)
        return
    from pww.data.corpus import find

    command = f"python -m pww.data tokenize data={config.data.name}"
    try:
        corpus = find(
            config.data, seq_len=config.model.seq_len, vocab_multiple=config.model.vocab_multiple,
            project=paths.PROJECT, command=command,
        )  # fmt: skip
    except DataError as fault:
        yield Finding("data", "warning", str(fault))
        yield from _tokenizer(config)
        return
    made = corpus.manifest
    yield Finding(
        "data", "good", f"{config.data.name}: {made.num_windows} windows, digest {made.digest[:16]}"
    )
    yield Finding(
        "tokenizer", "good", f"digest {made.tokenizer[:16]}, vocabulary of {made.vocab_size}"
    )


def _tokenizer(config: Config) -> Iterator[Finding]:
    """The one that is given, where no corpus was made with it yet."""
    from pww.data.inputs import tokenizer_path
    from pww.data.tokenizer import read_tokenizer

    try:
        path = tokenizer_path(config.text, paths.PROJECT)
        if path is not None:
            found = read_tokenizer(path)
            yield Finding("tokenizer", "good", f"{path}: digest {found.digest[:16]}")
    except DataError as fault:
        yield Finding("tokenizer", "bad", str(fault))


def _gallery(images: Images) -> Finding:
    from pww.data.images.gallery import open_gallery

    try:
        found = open_gallery(images, project=paths.PROJECT)
    except DataError as fault:
        return Finding("data", "warning", str(fault))
    told = f"{images.name}: {found.num_windows} images, digest {found.digest[:16]}"
    return Finding("data", "good", told)
