"""Prepares a clone on a machine: folders on scratch, links to them, and what is missing there.

Idempotent: what is right is left alone, what holds files is never moved or replaced.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pww.config.schema import Config, Site
from pww.errors import ConfigError, StateError

LINKED = ("data", "outputs")
"""Folders of the project that grow, and belong on scratch."""


@dataclass(frozen=True, slots=True)
class Step:
    """What was done, or found: one line for people."""

    what: str
    done: bool  # False: it was right already


def bootstrap(config: Config, *, project: Path) -> Iterator[Step]:
    """Makes folders and links; yields each as it is made or found right.

    Every link is looked at before the first is made, so that a refusal changes nothing.

    Raises:
        ConfigError: something is in the way, or the site is not told all that its paths want.
        StateError: a folder cannot be made.
    """
    site = config.site
    if site.scratch == "none":
        for name in LINKED:
            yield _folder(project / name)
        return
    if faults := unnamed(site):
        raise ConfigError(faults)
    home = Path(site.scratch) / "pww"
    targets = {project / name: home / name for name in LINKED}
    faults = [fault for link, target in targets.items() if (fault := _in_the_way(link, target))]
    if faults:
        raise ConfigError(faults)
    for link, target in targets.items():
        yield _folder(target)
        yield _link(link, target)


def unnamed(site: Site) -> list[str]:
    """Why the site's own paths cannot be right: one is made of a name that was not given."""
    if "//" not in site.scratch:
        return []
    return [
        f"site.scratch={site.scratch}: has an empty part; give site.queue.account=…, or "
        "PWW_ACCOUNT in the environment, or a path"
    ]


def lacking(config: Config, *, environ: Mapping[str, str]) -> list[str]:
    """What a job of this site would miss here, a sentence each; none of it is made by us."""
    return commands(config, environ=environ) + interpreter(config)


def commands(config: Config, *, environ: Mapping[str, str]) -> list[str]:
    """What is missing to submit from here."""
    site = config.site
    found: list[str] = []
    if site.queue.kind != "slurm":
        return found
    for name in ("sbatch", "srun", "squeue", "scancel"):
        if shutil.which(name, path=environ.get("PATH", "")) is None:
            found.append(
                f"{name}: not on PATH; run this on a login node of {site.name}, or load its module"
            )
    if "SLURM_JOB_ID" in environ:
        found.append(
            f"SLURM_JOB_ID={environ['SLURM_JOB_ID']}: this is inside a job; prepare and submit on "
            "a login node, where downloads are possible"
        )
    return found


def interpreter(config: Config) -> list[str]:
    """Files that the ranks' command names and that are not there."""
    queue = config.site.queue
    if queue.kind != "slurm":
        return []
    paths = [Path(os.path.expandvars(word)) for word in queue.python.split()]
    return [
        f"{path}: site.queue.python needs it, and it does not exist; launch/README.md says how it "
        "is built"
        for path in paths
        if path.is_absolute() and not path.exists()
    ]


def _folder(path: Path) -> Step:
    if path.is_dir():
        return Step(f"{path}: there", done=False)
    try:
        path.mkdir(parents=True)
    except OSError as why:
        raise StateError(
            f"{path} cannot be made: {why}; make room, or give site.scratch=FOLDER that you may "
            "write to"
        ) from why
    return Step(f"{path}: made", done=True)


def _in_the_way(link: Path, target: Path) -> str:
    """Why `link` cannot become a link to `target`; "" if it can, or is one."""
    if link.is_symlink():
        there = link.readlink()
        if there == target:
            return ""
        return (
            f"{link}: is a link to {there}, and site.scratch wants {target}; remove the link, or "
            f"give the site.scratch that it was made for"
        )
    if link.is_dir():
        held = sorted(p.name for p in link.iterdir())
        if not held:
            return ""
        return (
            f"{link}: holds {len(held)} file(s) or folder(s) such as {held[0]}; move them to "
            f"{target} and run this again"
        )
    return f"{link}: is a file; remove it" if link.exists() else ""


def _link(link: Path, target: Path) -> Step:
    if link.is_symlink():
        return Step(f"{link} -> {target}: there", done=False)
    try:
        if link.is_dir():
            link.rmdir()
        link.symlink_to(target, target_is_directory=True)
    except OSError as why:
        raise StateError(f"{link} cannot be made a link to {target}: {why}") from why
    return Step(f"{link} -> {target}: made", done=True)
