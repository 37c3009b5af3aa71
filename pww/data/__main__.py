"""`python -m pww.data`: makes a tokenised corpus, once, or shows what is in one.

    python -m pww.data tokenize data=c4 [tokenizer=PATH] [mend=true] [group=choice] [key=value ...]
    python -m pww.data show     data=c4 [window=N] [held_out=true] [json=true]

The configuration is composed as for `python -m pww.train`, so that the same words name the same
corpus in both. Never imports torch.
"""

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pww.config import paths
from pww.config.faults import did_you_mean
from pww.config.load import run_app
from pww.config.schema import Config
from pww.config.shorthand import with_tokenizer
from pww.errors import ConfigError, DataError, Stopped

if TYPE_CHECKING:
    from pww.clock import Clock

COMMANDS = ("tokenize", "show")
OWN = {"tokenize": ("mend",), "show": ("window", "held_out", "json")}
"""Words of a command that are no keys of the configuration."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a command line asks for beside the configuration."""

    window: int = 0
    held_out: bool = False
    json: bool = False
    mend: bool = False


def main(argv: Sequence[str]) -> int:
    """Runs one command; returns the exit code."""
    try:
        command, words = _command(argv)
        words = with_tokenizer(words, here=Path.cwd())
        asked, words = _asked(words, OWN[command])
    except ConfigError as fault:
        print(fault, file=sys.stderr)
        return fault.exit_code
    told = shlex.join(["python", "-m", "pww.data", "tokenize", *words])

    def task(config: Config) -> int:
        if command == "show":
            return show(config, asked, command=told)
        return tokenize(config, words, command=told, mend=asked.mend)

    try:
        return run_app(task, program="pww.data", refine=_settle, argv=words)
    except KeyboardInterrupt:
        return Stopped.exit_code
    except BrokenPipeError:  # who reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def tokenize(config: Config, words: Sequence[str], *, command: str, mend: bool) -> int:
    """Makes the corpus that a training with this configuration reads, or verifies the one there.

    Raises:
        DataError: it is damaged, and nobody asked to `mend` it.
    """
    from pww import log
    from pww.clock import SystemClock
    from pww.data.corpus import locate, prepare

    log.setup(label="data")
    data, seq_len, multiple = config.text, config.model.seq_len, config.model.vocab_multiple
    try:
        place = locate(data, seq_len=seq_len, vocab_multiple=multiple, project=paths.PROJECT)
        if place.entry.is_dir():
            _verify(place.entry, data.name, command=command, mend=mend, clock=SystemClock())
        corpus = prepare(
            data, seq_len=seq_len, vocab_multiple=multiple, project=paths.PROJECT, place=place
        )
    except KeyboardInterrupt:
        print("stopped; the same command goes on from what is done", file=sys.stderr)
        return Stopped.exit_code
    made = corpus.manifest
    print(f"corpus {config.data.name} in {paths.shown(corpus.folder)}")
    print(
        f"{made.num_windows:,} windows of {made.seq_len} tokens and the next; digest {made.digest}"
    )
    print(f"train on it with: {shlex.join(['python', '-m', 'pww.train', *words])}")
    return 0


def _verify(entry: Path, name: str, *, command: str, mend: bool, clock: "Clock") -> None:
    """Says that a corpus is whole; a damaged one is taken away if it is to be mended.

    Raises:
        DataError: it is damaged and stays.
    """
    from pww.data.cache import withdrawn
    from pww.data.verify import damage

    faults = damage(entry, clock=clock)
    if not faults:
        print(f"corpus {name} was there and is whole: every file has its manifest's SHA-256")
        return
    if not mend:
        raise DataError(
            "\n".join(faults) + f"\ncorpus {name} is damaged: do not train on it; to tokenise it "
            f"again: {command} mend=true"
        )
    print("\n".join(faults), file=sys.stderr)
    print(f"corpus {name} is damaged: it is tokenised again", file=sys.stderr)
    withdrawn(entry, clock=clock)


def show(config: Config, asked: Asked, *, command: str) -> int:
    """What is in the corpus of this configuration, and the text of one window."""
    from pww.data.corpus import find
    from pww.data.shown import as_json, as_text

    corpus = find(
        config.text,
        seq_len=config.model.seq_len,
        vocab_multiple=config.model.vocab_multiple,
        project=paths.PROJECT,
        command=command,
    )
    render = as_json if asked.json else as_text
    print(render(corpus, window=asked.window, held_out=asked.held_out))
    return 0


def _command(argv: Sequence[str]) -> tuple[str, list[str]]:
    """The command, wherever it stands, and the other words; `--help` and its like need none."""
    found = [word for word in argv if word in COMMANDS]
    others = [word for word in argv if word not in COMMANDS]
    if len(found) == 1:
        return found[0], others
    if not found and any(word.startswith("-") for word in argv):
        return "tokenize", others  # --help, --cfg job
    bare = [word for word in argv if "=" not in word]
    said = " ".join(found or bare) or "none"
    near = did_you_mean(bare[0], COMMANDS) if bare and not found else ""
    raise ConfigError([f"command: {said}; give one of tokenize, show (--help says more){near}"])


def _asked(words: Sequence[str], own: Sequence[str]) -> tuple[Asked, list[str]]:
    """What the command is asked for by its `own` words, and the other words.

    Raises:
        ConfigError: a value cannot be used.
    """
    values: dict[str, str] = {}
    others = []
    for word in words:
        key, equals, value = word.partition("=")
        if equals and key in own:
            values[key] = value
        else:
            others.append(word)
    faults = []
    window = values.pop("window", "0")
    if not (window.isascii() and window.isdigit()):
        faults.append(f"window={window}: the number of a window, from 0")
    for key, value in values.items():
        if value not in ("true", "false"):
            faults.append(f"{key}={value}: true or false")
    if faults:
        raise ConfigError(faults)
    return Asked(int(window), **{key: value == "true" for key, value in values.items()}), others


def _settle(config: Config, given: frozenset[str]) -> Config:
    """Refuses what has no effect here.

    Raises:
        ConfigError: a key that would have none.
    """
    faults = []
    if config.dry:
        faults.append("dry=true: python -m pww.data show says whether a corpus is there")
    if config.resume != "none":
        faults.append(
            f"resume={config.resume}: tokenising goes on by itself from what is done; leave it out"
        )
    if faults:
        raise ConfigError(faults)
    return config


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
