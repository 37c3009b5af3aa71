"""One run, one configuration: in both processes of a split central, and from start to start."""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

from pww.config.load import read_config
from pww.config.paths import CONFIG_FILE
from pww.config.schema import Config
from pww.errors import ConfigError

log = logging.getLogger(__name__)
OWN = "central.roles"
HARMLESS = frozenset((OWN, "resume", "dry"))
"""What may differ from start to start without a word."""


def require_same(config: Config, folder: Path) -> None:
    """Passes if `config` is the one that the coordinator froze in the run's folder.

    Raises:
        ConfigError: they differ (every key), or it cannot be read.
    """
    theirs = read_config(folder / CONFIG_FILE).model_dump(mode="json")
    faults = [
        f"{key}={ours}: the coordinator of this run has {other}; start both with the same settings"
        for key, ours, other in _differences(config.model_dump(mode="json"), theirs)
        if key != OWN
    ]
    if faults:
        raise ConfigError(faults)


def tell_changes(config: Config, folder: Path) -> None:
    """Says in the log what is set otherwise than when this run was served before.

    Raises:
        ConfigError: what was set then cannot be read.
    """
    if not (folder / CONFIG_FILE).exists():
        return
    before = read_config(folder / CONFIG_FILE).model_dump(mode="json")
    for key, now, then in _differences(config.model_dump(mode="json"), before):
        if key not in HARMLESS:
            log.warning("this run goes on with %s=%s; until now it was %s", key, now, then)


def _differences(
    ours: Mapping[str, object], theirs: Mapping[str, object], prefix: str = ""
) -> Iterator[tuple[str, object, object]]:
    for name in sorted(ours.keys() | theirs.keys()):
        mine, other = ours.get(name), theirs.get(name)
        if isinstance(mine, Mapping) and isinstance(other, Mapping):
            yield from _differences(mine, other, f"{prefix}{name}.")
        elif mine != other:
            yield f"{prefix}{name}", mine, other
