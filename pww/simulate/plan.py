"""What `python -m pww.simulate` is asked for: its words, who is how fast, killed and late; a corpus
that is a manifest only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from pww.data.manifest import TOOL, Manifest
from pww.errors import ConfigError
from pww.folder import write_durably

BLOCK_WINDOWS, BATCH_WINDOWS = 4, 2
SPREAD = 8.0
"""The fastest replica's speed by the slowest's."""
PHASES = 24
"""The fastest replica's phase is this part of the corpus."""
WINDOW_TOKENS = 9
"""A window has eight targets; nobody computes them."""
RANGES = {"replicas": (1, 16), "kill": (0, 15), "late": (0, 15), "blocks": (1, 10**5),
          "seed": (0, 2**31 - 1)}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    """What the command line asked for."""

    replicas: int = 4
    kill: int = 1
    late: int = 1
    blocks: int = 1000
    seed: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """Replica ids within their site, slowest first."""
        return tuple(chr(ord("a") + i) for i in range(self.replicas))

    @property
    def speeds(self) -> tuple[float, ...]:
        """Windows per second, slowest first; all of them together take half a minute or less."""
        steps = max(1, self.replicas - 1)
        relative = [SPREAD ** (i / steps) for i in range(self.replicas)]
        seconds = min(12.0, max(4.0, self.blocks / 80))
        slowest = self.blocks * BLOCK_WINDOWS / seconds / sum(relative)
        return tuple(slowest * each for each in relative)

    @property
    def phase_blocks(self) -> int:
        """Blocks of the fastest replica's phase."""
        return max(1, self.blocks // PHASES)

    @property
    def killed(self) -> tuple[str, ...]:
        """Who is killed: not the fastest or the slowest, as long as there are others."""
        order = [*self.names[-2:0:-1], self.names[0], self.names[-1]]
        return tuple(order[: self.kill])

    @property
    def latecomers(self) -> tuple[str, ...]:
        """Who joins late; likewise."""
        order = [*self.names[1:-1], self.names[0], self.names[-1]]
        return tuple(name for name in order if name not in self.killed)[: self.late]


def parse(argv: Sequence[str]) -> Plan:
    """What the words ask for.

    Raises:
        ConfigError: a word is not ours, a value is out of range, or nobody would be left.
    """
    values: dict[str, int] = {}
    faults = []
    for word in argv:
        key, _, text = word.partition("=")
        if key not in RANGES:
            faults.append(f"{word}: the words are {', '.join(f'{key}=N' for key in RANGES)}")
            continue
        low, high = RANGES[key]
        if not (text.isascii() and text.isdigit() and low <= int(text) <= high):
            faults.append(f"{key}={text}: a whole number from {low} to {high}")
        elif key in values:
            faults.append(f"{word}: {key} is given twice")
        else:
            values[key] = int(text)
    plan = Plan(**values)
    if not faults and plan.kill + plan.late >= plan.replicas:
        faults.append(
            f"kill={plan.kill} late={plan.late} needs replicas={plan.kill + plan.late + 1} or "
            "more: one has to start at once and stay"
        )
    if not faults and plan.blocks < 10 * plan.replicas:
        faults.append(
            f"blocks={plan.blocks} are too few for replicas={plan.replicas}: give blocks="
            f"{10 * plan.replicas} or more"
        )
    if faults:
        raise ConfigError(faults)
    return plan


def write_manifest(path: Path, *, num_windows: int) -> None:
    """The manifest of a corpus of that many windows; no corpus is behind it."""
    nothing = sha256(b"pww.simulate").hexdigest()
    manifest = Manifest(
        tool=TOOL, corpus=nothing, tokenizer=nothing, window_tokens=WINDOW_TOKENS, dtype="uint16",
        vocab_size=1, padded_vocab=1, end_of_document=0, num_documents=1, num_empty=0,
        num_tokens=num_windows * WINDOW_TOKENS, num_windows=num_windows, num_held_out=0,
        num_left_out=0, tail_tokens=0, shards=(), held_out=(),
    )  # fmt: skip
    write_durably(path, manifest.to_json())
