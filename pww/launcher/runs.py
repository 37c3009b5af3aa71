"""A run's folder: made once and never shared, or found again to go on in.

run.name=auto   the time of the start; -2, -3 … when the same second was taken
run.name=x      exactly x, and new
resume=FOLDER   that run, with the configuration that it started with
resume=auto     the newest unfinished run of the same replica, corpus and central; none: a new run
"""

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from pww.clock import Clock
from pww.config import paths
from pww.config.load import read_config
from pww.config.schema import Config
from pww.errors import ConfigError, StateError
from pww.folder import owned

AUTO = "auto"
NONE = "none"
OF_THE_QUEUE = ("time", "account", "signal_s", "setup", "python")
FREE = (
    "resume", "dry", "central.url", "metrics", "run.root", "launcher",
    *(f"site.queue.{key}" for key in OF_THE_QUEUE),
)  # fmt: skip
"""Keys that may differ when a run goes on; all others are those that it started with."""


def settle(config: Config, given: frozenset[str]) -> Config:
    """Which run this is, before anything is made: a new one, or an old one's own configuration.

    Args:
        config: as composed.
        given: dotted keys that the command line sets.

    Returns:
        `config` for a new run (`resume` still says `auto` if none was found), else the stored
        configuration with `resume` naming its folder.

    Raises:
        ConfigError: the name is taken, or there is no such run, or it cannot go on like this.
    """
    if config.resume == NONE:
        return _new(config)
    if config.resume == AUTO:
        found = newest(config)
        return _new(config) if found is None else _resumed(config, found, given)
    typed = Path(config.resume)
    folder = typed if (typed / paths.CONFIG_FILE).is_file() else paths.PROJECT / typed
    return _resumed(config, folder.absolute(), given)


def claim(config: Config, clock: Clock) -> tuple[Config, Path]:
    """The run's folder with its `config.yaml`, and the configuration as frozen there.

    Making the folder is what claims a name: of two processes that want it, one gets it.

    Raises:
        ConfigError: the name was taken meanwhile.
        StateError: the folder cannot be written, or another process trains in it.
    """
    try:
        if config.resume not in (NONE, AUTO):
            folder = paths.PROJECT / config.resume
            # Only its owner may touch a run that is being trained
            with owned(folder, remedy="wait for it, or start a new run"):
                paths.freeze(config, folder)
        else:
            name = _make(config, named(config, clock).run.name)
            run = config.run.model_copy(update={"name": name})
            config = config.model_copy(update={"run": run, "resume": NONE})
            folder = paths.run_folder(config)
            paths.freeze(config, folder)
    except OSError as error:
        where = paths.shown(paths.PROJECT / config.run.root)
        raise StateError(
            f"cannot make the run's folder in {where}: {error}; make room, or give run.root=…"
        ) from None
    return config, folder


def named(config: Config, clock: Clock) -> Config:
    """`config` with `run.name=auto` replaced by the time, as if it started now."""
    if config.run.name != AUTO:
        return config
    start = datetime.fromtimestamp(clock.wall()).strftime("%Y%m%d-%H%M%S")
    return config.model_copy(update={"run": config.run.model_copy(update={"name": start})})


def newest(config: Config) -> Path | None:
    """The newest unfinished run that `resume=auto` means; runs that cannot be read are not it."""
    found: list[tuple[float, str, Path]] = []
    for file in (paths.PROJECT / config.run.root).glob(f"*/{paths.CONFIG_FILE}"):
        folder = file.parent
        if (folder / paths.FINISHED).exists() or not (folder / "checkpoints").is_dir():
            continue
        try:
            stored = yaml.safe_load(file.read_text())
            mine = _identity(stored) == _identity(config.model_dump(mode="json"))
        except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError):
            continue
        if mine:
            found.append((file.stat().st_mtime, folder.name, folder))
    return max(found)[2] if found else None


def _identity(values: dict[str, Any]) -> tuple[str, str, str, str]:
    return (
        values["site"]["name"],
        values["replica"],
        values["data"]["name"],
        values["central"]["url"],
    )


def _new(config: Config) -> Config:
    folder = paths.run_folder(config)
    if config.run.name != AUTO and folder.exists():
        raise ConfigError([_taken(config.run.name, folder)])
    return config


def _taken(name: str, folder: Path) -> str:
    shown = paths.shown(folder)
    return f"run.name={name}: {shown} exists; give another name, or go on with it: resume={shown}"


def _make(config: Config, wanted: str) -> str:
    """Makes the folder; a name that is only the time gets -2, -3 … where it is taken."""
    root = paths.PROJECT / config.run.root
    root.mkdir(parents=True, exist_ok=True)
    name, number = wanted, 1
    while True:
        try:
            (root / name).mkdir()
        except FileExistsError:
            if config.run.name != AUTO:
                raise ConfigError([_taken(name, root / name)]) from None
            number += 1
            name = f"{wanted}-{number}"
        else:
            return name


def _resumed(config: Config, folder: Path, given: frozenset[str]) -> Config:
    """The stored configuration, with what may differ taken from the command line."""
    shown = paths.shown(folder)
    key = f"resume={config.resume}"
    if not folder.exists():
        raise ConfigError([f"{key}: there is no folder {shown}"])
    if not (folder / paths.CONFIG_FILE).is_file():
        raise ConfigError([f"{key}: {shown} holds no run ({paths.CONFIG_FILE} is missing)"])
    if (folder / paths.FINISHED).exists():
        raise ConfigError([f"{key}: the run in {shown} is finished; start a new one"])
    stored = read_config(folder / paths.CONFIG_FILE)
    old, new = _leaves(stored.model_dump(mode="json")), _leaves(config.model_dump(mode="json"))
    faults = [
        f"{name}={_word(new.get(name))}: the run in {shown} was started with "
        f"{_word(old.get(name))}, and a resumed run keeps its configuration; leave it out, or "
        "start a new run"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name) and _below(name, given) and not _below(name, FREE)
    ]
    if faults:
        raise ConfigError(faults)
    changed: dict[str, Any] = {"resume": str(folder), "dry": config.dry}
    if "central.url" in given:
        changed["central"] = stored.central.model_copy(update={"url": config.central.url})
    if any(_below(name, ["metrics"]) for name in given):
        changed["metrics"] = config.metrics
    if any(_below(name, ["launcher"]) for name in given):
        changed["launcher"] = config.launcher
    queue, asked = stored.site.queue, config.site.queue
    if queue.kind == "slurm" and asked.kind == "slurm":
        told = {k: getattr(asked, k) for k in OF_THE_QUEUE if f"site.queue.{k}" in given}
        queue = queue.model_copy(update=told)
        changed["site"] = stored.site.model_copy(update={"queue": queue})
    return stored.model_copy(update=changed)


def _below(name: str, keys: Iterable[str]) -> bool:
    return any(name == key or name.startswith(f"{key}.") for key in keys)


def _leaves(values: dict[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            found |= _leaves(value, f"{above}{key}.")
        else:
            found[f"{above}{key}"] = value
    return found


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)
