"""A command line as Hydra reads it: its own flags, and override words wherever they stand."""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from pww.config.compose import CONFIG_NAME, Source
from pww.config.paths import CONF
from pww.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Line:
    """A command line: Hydra's flags, and the override words wherever they stood."""

    args: Namespace
    flags: tuple[str, ...]
    words: tuple[str, ...]

    @property
    def shows_only(self) -> bool:
        """Whether nothing is to run."""
        a = self.args
        return bool(a.help or a.hydra_help or a.cfg or a.info or a.shell_completion)

    @property
    def source(self) -> Source:
        """Where it wants the configuration composed from."""
        a = self.args
        return Source(
            config_name=a.config_name or CONFIG_NAME,
            config_dir=Path(a.config_path).absolute() if a.config_path else CONF,
            extra_dirs=(Path(a.config_dir).absolute(),) if a.config_dir else (),
        )


def split(argv: Sequence[str]) -> Line:
    """Takes a command line apart.

    Raises:
        ConfigError: Hydra cannot read it, or would do what pww does not.
    """
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
    return Line(args, tuple(flags), tuple(args.overrides))
