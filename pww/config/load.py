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
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pww.config.compose import CONFIG_NAME, Source, register_resolvers
from pww.config.paths import CONF
from pww.errors import ConfigError, PwwError

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from pww.config.prepare import Prepared, Refine
    from pww.config.schema import Config

Task = Callable[["Config"], int]
"""A program's main: a checked configuration in, an exit code out."""

INTERRUPTED = 130


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
        return validate(values)
    except ConfigError as error:
        raise ConfigError([f"{path}: {fault}" for fault in error.faults]) from None


def run_app(
    task: Task,
    *,
    program: str,
    defaults: Sequence[str] = (),
    refine: "Refine | None" = None,
    argv: Sequence[str] | None = None,
) -> int:
    """Runs `task` on the configuration (with -m: on each) that the command line asks for.

    Args:
        task: called with a checked configuration; a `PwwError` that it raises is printed.
        program: as it is typed after `python -m`.
        defaults: override tokens of the program, which the command line's beat.
        refine: the program's own last check, before anything starts.
        argv: the words after the program's name; the process's own by default.

    Returns:
        The exit code; of a sweep, the highest.
    """
    from pww.config.prepare import prepare

    try:
        line = _split(sys.argv[1:] if argv is None else argv)
        own = [f"hydra.job.name={program}", *_help_of(program)]
        if line.shows_only:
            return _spoken(lambda: _show(line, program=program, defaults=[*own, *defaults]))
        prepared = prepare(
            line.words,
            defaults=[*own, *defaults],
            source=line.source,
            multirun=line.args.multirun,
            refine=refine,
        )
    except ConfigError as fault:
        print(fault, file=sys.stderr)
        return fault.exit_code
    if all(config.dry for config in prepared.configs):
        # Nothing is launched, so no launcher (and no folder of a sweep) is needed
        return _spoken(lambda: max(_guarded(task, config) for config in prepared.configs))
    return _run(task, prepared, line, program=program)


@dataclass(frozen=True, slots=True)
class _Line:
    """A command line: Hydra's flags, and the override words wherever they stood."""

    args: Namespace
    flags: tuple[str, ...]
    words: tuple[str, ...]

    @property
    def shows_only(self) -> bool:
        a = self.args
        return bool(a.help or a.hydra_help or a.cfg or a.info or a.shell_completion)

    @property
    def source(self) -> Source:
        a = self.args
        return Source(
            config_name=a.config_name or CONFIG_NAME,
            config_dir=Path(a.config_path).absolute() if a.config_path else CONF,
            extra_dirs=(Path(a.config_dir).absolute(),) if a.config_dir else (),
        )


def _split(argv: Sequence[str]) -> _Line:
    from hydra._internal.utils import get_args_parser

    def fail(message: str) -> NoReturn:
        raise ConfigError([f"{message}; --help shows what there is"])

    parser = get_args_parser()
    parser.error = fail  # type: ignore[method-assign]
    args = parser.parse_intermixed_args(list(argv))
    if args.experimental_rerun is not None:
        fail("--experimental-rerun reads pickles, which pww does not; use resume=")
    folders = {"--config-path": args.config_path, "--config-dir": args.config_dir}
    for flag, folder in folders.items():
        if folder is not None and not Path(folder).is_dir():
            fail(f"{flag} {folder}: no such folder")
    words = list(args.overrides)
    flags = []
    for word in argv:
        if words and word == words[0]:
            words.pop(0)
        else:
            flags.append(word)
    return _Line(args, tuple(flags), tuple(args.overrides))


def _help_of(program: str) -> list[str]:
    name = program.rpartition(".")[2]
    return [f"hydra/help={name}"] if (CONF / "hydra" / "help" / f"{name}.yaml").is_file() else []


def _hydra(
    job: "Callable[[DictConfig], None]", line: _Line, words: Sequence[str], *, program: str
) -> int:
    """Hydra's main on this command line; its exit code."""
    import hydra

    register_resolvers()
    before = sys.argv
    sys.argv = [program, *words, *line.flags]  # a bare --info would take the word after it
    source = line.source
    main = hydra.main(
        version_base="1.3", config_path=str(source.config_dir), config_name=source.config_name
    )
    try:
        main(job)()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.argv = before
    return 0


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


def _show(line: _Line, *, program: str, defaults: Sequence[str]) -> int:
    """`--help`, `--cfg` and the like; only if Hydra fails, the reasons are looked for."""
    if line.args.help:
        return _help(line, defaults)
    said, told = io.StringIO(), io.StringIO()
    failure: Exception | None = None
    code = 1
    with redirect_stderr(said), redirect_stdout(told):
        try:
            code = _hydra(lambda _: None, line, [*defaults, *line.words], program=program)
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


def _help(line: _Line, defaults: Sequence[str]) -> int:
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
        groups = "".join(f"{g}: {', '.join(hydra.options(g))}\n" for g in hydra.groups())
        template = Template(tree.hydra.help.template)
        with open_dict(tree):
            del tree["hydra"]
        config = OmegaConf.to_yaml(tree, resolve=line.args.resolve)
    print(template.substitute(APP_CONFIG_GROUPS=groups, CONFIG=config))
    return 0


def _run(task: Task, prepared: "Prepared", line: _Line, *, program: str) -> int:
    from hydra.core.hydra_config import HydraConfig

    codes: list[int] = []
    bugs: list[Exception] = []

    def job(_: "DictConfig") -> None:
        number = HydraConfig.get().job.num if prepared.multirun else 0
        try:
            codes.append(_guarded(task, prepared.configs[number]))
        except Exception as bug:
            # Hydra would cut the traceback of our own bug and print advice about itself
            bugs.append(bug)
            raise SystemExit(1) from None
        if codes[-1] == INTERRUPTED:
            raise SystemExit(INTERRUPTED)

    code = _hydra(job, line, prepared.words, program=program)
    if bugs:
        raise bugs[0]
    return max([code, *codes])


def _guarded(task: Task, config: "Config") -> int:
    """A fault ends in its sentence, never in a traceback."""
    try:
        return task(config)
    except PwwError as fault:
        print(fault, file=sys.stderr)
        return fault.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
