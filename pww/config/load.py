"""How every program of ours gets its configuration, and starts.

    compose(["site=lumi", …])           tokens → Config
    read_config(RUN/config.yaml)        what a rank reads → Config, checked again
    run_app(main, program="pww.train")  the command line → checked jobs → main(config) → exit code

Hydra is the program proper (`--help`, `--cfg`, `--info`, `-m`), but it sees a command line only
after all of its jobs were composed and checked here: nothing starts, and no folder is made, while
there is a fault. The job that runs is the very `Config` that was checked. Exit codes: 2 for a wrong
configuration, else the program's own.
"""

import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pww.config.line import Line, split
from pww.config.paths import CONF
from pww.config.running import (
    Queue,
    Task,
    guarded,
    hand_over,
    hand_over_chosen,
    run_here,
    under_hydra,
    wants_queue,
)
from pww.errors import ConfigError

if TYPE_CHECKING:
    from pww.config.prepare import Refine, Shape
    from pww.config.schema import Config

BASIC = "basic"
"""Hydra's sweeper that enumerates: all jobs are known before the first starts."""


def compose(overrides: Sequence[str] = ()) -> "Config":
    """The configuration that these override tokens mean.

    Raises:
        ConfigError: every fault.
    """
    from pww.config.prepare import prepare

    return prepare(overrides).configs[0]


def read_config(path: Path) -> "Config":
    """A run's frozen configuration.

    Raises:
        ConfigError: the file cannot be read, or does not pass the checks of this version.
    """
    import yaml

    from pww.config.prepare import validate

    try:
        values = yaml.safe_load(path.read_text())
    except (OSError, UnicodeError) as error:
        raise ConfigError([f"{path}: cannot be read: {error}"]) from None
    except yaml.YAMLError as error:
        raise ConfigError([f"{path}: is not YAML: {' '.join(str(error).split())}"]) from None
    if not isinstance(values, dict):
        raise ConfigError([f"{path}: holds no configuration; start a new run"])
    try:
        return validate(_with_newer_keys(values))
    except ConfigError as error:
        raise ConfigError([f"{path}: {fault}" for fault in error.faults]) from None


def _with_newer_keys(values: "dict[str, Any]") -> "dict[str, Any]":
    """`values` of a run that was started before these keys were there, as it was then."""
    site = values.get("site")
    if isinstance(site, dict):
        site.setdefault("scratch", "none")
    values.setdefault("launcher", {"wait": False, "requeues": 0})
    codec = values.get("codec")
    if isinstance(codec, dict) and codec.get("kind") == "randomk":
        codec.setdefault("force", False)
    return values


def run_app(
    task: Task,
    *,
    program: str,
    defaults: Sequence[str] = (),
    refine: "Refine | None" = None,
    queue: Queue | None = None,
    argv: Sequence[str] | None = None,
    shape: "Shape | None" = None,
) -> int:
    """Runs `task` on the configuration (with -m: on each) that the command line asks for.

    Args:
        task: called with a checked configuration; a `PwwError` that it raises is printed.
        program: as it is typed after `python -m`.
        defaults: override tokens of the program, which the command line's beat.
        refine: the program's own last check, before anything starts.
        queue: takes all jobs, instead of `task`, where their site has a queue.
        argv: the words after the program's name; the process's own by default.
        shape: what is composed; a run by default.

    Returns:
        The exit code; of a sweep, the highest.
    """
    from pww.config.prepare import RUN, prepare

    shape = shape or RUN
    try:
        line = split(sys.argv[1:] if argv is None else argv)
        line.args.config_name = line.args.config_name or shape.config_name
        own = [f"hydra.job.name={program}", *_help_of(program)]
        if line.shows_only:
            return _spoken(lambda: _show(line, program=program, defaults=[*own, *defaults]))
        prepared = prepare(
            line.words,
            defaults=[*own, *defaults],
            source=line.source,
            multirun=line.args.multirun,
            refine=refine,
            shape=shape,
        )
        queued = queue is not None and wants_queue(prepared.configs)
        if prepared.sweeper != BASIC and not (queued and shape is RUN):
            raise ConfigError(
                [
                    f"hydra/sweeper={prepared.sweeper}: chooses its jobs as it goes, which only "
                    "pww.train at a site with a queue can; leave it out"
                ]
            )
        if queue is not None and queued and prepared.sweeper != BASIC:
            return hand_over_chosen(
                queue, prepared, line, program=program, defaults=[*own, *defaults], refine=refine
            )
    except ConfigError as fault:
        print(fault, file=sys.stderr)
        return fault.exit_code
    if queue is not None and queued:
        taken = queue
        return _spoken(lambda: hand_over(taken, prepared.configs))
    if all(config.dry for config in prepared.configs):
        # Nothing is launched, so no launcher (and no folder of a sweep) is needed
        return _spoken(lambda: max(guarded(partial(task, c)) for c in prepared.configs))
    return run_here(task, prepared, line, program=program)


def _help_of(program: str) -> list[str]:
    name = program.rpartition(".")[2]
    return [f"hydra/help={name}"] if (CONF / "hydra" / "help" / f"{name}.yaml").is_file() else []


def _spoken(speak: Callable[[], int]) -> int:
    """`speak` to a pipe whose reader may have read enough, as `head` does: that is no fault."""
    try:
        code = speak()
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def _show(line: Line, *, program: str, defaults: Sequence[str]) -> int:
    """`--help`, `--cfg` and the like; only if Hydra fails, the reasons are looked for."""
    if line.args.help:
        return _help(line, defaults)
    said, told = io.StringIO(), io.StringIO()
    failure: Exception | None = None
    code = 1
    with redirect_stderr(said), redirect_stdout(told):
        try:
            code = under_hydra(lambda _: None, line, [*defaults, *line.words], program=program)
        except Exception as error:
            failure = error
    if code == 0:
        sys.stderr.write(said.getvalue())
        sys.stdout.write(told.getvalue())  # ours to write: Hydra makes a failure of a closed pipe
        return 0
    from pww.config.prepare import find

    sentences = find(line.words, source=line.source, defaults=defaults)
    if not sentences:
        sentences = [" ".join(str(failure or said.getvalue()).split())]
    raise ConfigError(sentences)


def _help(line: Line, defaults: Sequence[str]) -> int:
    """Hydra's help, from its template; its own way reads every source again for each group."""
    from string import Template

    from omegaconf import OmegaConf, open_dict

    from pww.config.compose import composer
    from pww.config.faults import Faults

    faults = Faults()
    with composer(line.source) as hydra:
        tree, _ = hydra.tree(hydra.parse([*defaults, *line.words], faults), faults)
        if tree is None or faults.sentences:
            raise ConfigError(faults.sentences)
        here = {group.partition("/")[0] for group in tree.hydra.runtime.choices}
        groups = "".join(
            f"{g}: {', '.join(hydra.options(g))}\n"
            for g in hydra.groups()
            if g.partition("/")[0] in here
        )
        template = Template(tree.hydra.help.template)
        with open_dict(tree):
            del tree["hydra"]
        config = OmegaConf.to_yaml(tree, resolve=line.args.resolve)
    print(template.substitute(APP_CONFIG_GROUPS=groups, CONFIG=config))
    return 0
