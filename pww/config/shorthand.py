"""`tokenizer=PATH`: one word for the two that name a tokenizer, the same in every program.

Its path starts where it was typed, unlike those of the configuration's own keys.
"""

from collections.abc import Sequence
from pathlib import Path

from pww.config import paths
from pww.errors import ConfigError


def with_tokenizer(words: Sequence[str], *, here: Path) -> list[str]:
    """`tokenizer=PATH` in the words that the configuration knows; a path typed here stays valid.

    Raises:
        ConfigError: it is given twice, or without a path.
    """
    given = [word for word in words if word.startswith("tokenizer=")]
    others = [word for word in words if word not in given]
    if not given:
        return others
    path = given[0].partition("=")[2]
    clash = [word for word in others if word.startswith(("data/tokenizer=", "data.tokenizer."))]
    if len(given) > 1 or clash:
        both = " ".join([*given, *clash])
        raise ConfigError([f"{both}: says more than once which tokenizer; leave one"])
    if not path:
        raise ConfigError(["tokenizer=: give the path of a tokenizer.json"])
    if (here / path).is_file() and not (paths.PROJECT / path).is_file():
        path = str((here / path).resolve())
    return [*others, "data/tokenizer=file", f"data.tokenizer.path={path}"]
