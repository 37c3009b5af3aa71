"""Coordinator and aggregator of one run have one configuration, but for who of the two they are."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from pww.config.load import read_config
from pww.config.paths import CONFIG_FILE
from pww.config.schema import Config
from pww.errors import ConfigError

OWN = "central.roles"


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


def _differences(
    ours: Mapping[str, object], theirs: Mapping[str, object], prefix: str = ""
) -> Iterator[tuple[str, object, object]]:
    for name in sorted(ours.keys() | theirs.keys()):
        mine, other = ours.get(name), theirs.get(name)
        if isinstance(mine, Mapping) and isinstance(other, Mapping):
            yield from _differences(mine, other, f"{prefix}{name}.")
        elif mine != other:
            yield f"{prefix}{name}", mine, other
