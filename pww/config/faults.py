"""Faults of a configuration, gathered: sentences for a person, and the keys that they are about."""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Faults:
    """Sentences, and the keys at fault (a key stands for everything below it)."""

    sentences: list[str] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)

    def add(self, sentence: str, *keys: str) -> None:
        """Notes a fault once."""
        if sentence and sentence not in self.sentences:
            self.sentences.append(sentence)
        self.keys.update(keys)

    def touches(self, key: str) -> bool:
        """Whether `key`, something above it or something below it is at fault."""
        return any(
            key == k or key.startswith(f"{k}.") or k.startswith(f"{key}.") for k in self.keys
        )


def did_you_mean(word: str, candidates: Sequence[str]) -> str:
    """`; did you mean X?` for a near miss, else nothing."""
    near = difflib.get_close_matches(word, candidates, n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


def refusals() -> tuple[type[Exception], ...]:
    """What composing raises when the configuration, not the program, is wrong.

    Hydra itself trips over a list of numbers for a group, OmegaConf over YAML that holds itself.
    """
    import yaml
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    mistaken = (TypeError, RecursionError, ValueError, OSError)
    return (HydraException, OmegaConfBaseException, yaml.YAMLError, *mistaken)


def flat(error: BaseException) -> str:
    """Hydra's message on one line: its cause if it has one, without advice and links."""
    text = " ".join(str(error.__cause__ or error).split())
    return re.sub(r"\s*(See https?://\S+( for [\w ]+)?|full_key: \S+|object_type=\w+)", "", text)
