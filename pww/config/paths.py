"""Where things are: the project folder, the configuration tree, and the folder of one run.

Relative paths of a configuration start at the project folder, not where the command was typed, so
that a site, a central and an audit find the same files.
"""

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from pww.folder import write_durably

if TYPE_CHECKING:
    from pww.config.schema import Config

PACKAGE = Path(__file__).resolve().parents[1]


def _project() -> Path:
    beside = PACKAGE.parent
    return beside if (beside / "conf" / "config.yaml").is_file() else Path.cwd()


PROJECT = _project()
"""The clone; where the package was installed without one, the current folder."""
CONF = PROJECT / "conf" if (PROJECT / "conf" / "config.yaml").is_file() else PACKAGE / "_conf"
"""The configuration tree."""
CONFIG_FILE = "config.yaml"
FINISHED = "finished"
"""A file of this name in a run's folder says that the run is complete."""
REQUEUE = "requeue"
"""… and of this name: it was stopped because its job's time was over, and wants to go on."""


def run_folder(config: "Config") -> Path:
    """The folder of the run, absolute."""
    return PROJECT / config.run.root / config.run.name


def shown(path: Path) -> str:
    """`path` as a person would type it here: relative if it is below the current folder."""
    try:
        return str(path.resolve().relative_to(Path.cwd().resolve())) or "."
    except ValueError:
        return str(path)


def freeze(config: "Config", folder: Path) -> None:
    """Writes `folder/config.yaml`, whole or not at all; `load.read_config` reads it back."""
    import yaml

    header = f"# The configuration of run {config.run.name}, complete; not to be edited.\n"
    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    write_durably(folder / CONFIG_FILE, (header + text).encode())


def wandb_id(folder: Path) -> str:
    """The run's wandb id: drawn once and kept in the folder, for a resumed run to go on in."""
    path = folder / "wandb_id"
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        write_durably(path, secrets.token_hex(8).encode())
        return path.read_text().strip()
