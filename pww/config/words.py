"""Override words: `key=value`, `group=choice` and sweeps become Hydra's overrides, one by one.

Where the schema wants text, a number stays what was typed: `run.name=0123`, `replica=12e3`.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, get_args

from pww.config.faults import Faults, did_you_mean
from pww.errors import ConfigError

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader
    from hydra.core.override_parser.types import Override

    from pww.config.schema import Section


def parse(words: Sequence[str], *, loader: "ConfigLoader", faults: Faults) -> list["Override"]:
    """Parses each word by itself; each that cannot be used is a fault of its own."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create(config_loader=loader)
    parsed = []
    for word in words:
        key = word.partition("=")[0].lstrip("+~")
        try:
            if not key:
                raise HydraException("no key")
            override = parser.parse_overrides([_as_text(word)])[0]
        except HydraException:
            if "=" not in word or not key:
                hint = "write key=value, or group=choice"
            else:
                hint = "the value cannot be read; put text with special characters in quotes: "
                hint += f"'{key}=\"…\"'"
            faults.add(f"{word}: not an override; {hint}", key)
            continue
        if override.package is not None:
            group = override.key_or_group
            faults.add(f"{word}: a group's place is fixed; write {group}=choice", group)
            continue
        if override.is_delete() and not override.is_hydra_override():
            faults.add(f"{word}: every key is needed; to change it write {key}=…", key)
            continue
        parsed.append(override)
    return parsed


def refuse_unknown_command(words: Sequence[str], commands: Sequence[str]) -> None:
    """For a program whose first word may be a command, which it was not.

    Raises:
        ConfigError: it is no override or option either.
    """
    word = next(iter(words), "-")
    if word.startswith(("-", "~")) or "=" in word:
        return
    there, near = ", ".join(commands), did_you_mean(word, commands)
    raise ConfigError(
        [f"{word}: no command (there are {there}), and no override, which is key=value{near}"]
    )


def sweep(overrides: Sequence["Override"], faults: Faults) -> list[list["Override"]]:
    """The jobs of a sweep as Hydra's basic sweeper enumerates them; one when nothing is swept."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.override_parser.overrides_parser import OverridesParser

    good = []
    for override in overrides:
        if override.is_sweep_override() and not override.is_discrete_sweep():
            faults.add(
                f"{line_of(override)}: an interval cannot be enumerated; give values a,b,c or "
                "range(start,stop,step)",
                override.key_or_group,
            )
        else:
            good.append(override)
    batch = BasicSweeper.split_arguments(good, None)[0]
    parser = OverridesParser.create()
    return [parser.parse_overrides(list(tokens)) for tokens in batch]


def line_of(override: "Override") -> str:
    """The word that an override was parsed from."""
    assert override.input_line is not None
    return override.input_line


def _as_text(word: str) -> str:
    """Quotes the value of a key of type text, so that it stays what was typed."""
    key, equals, value = word.partition("=")
    if (
        not equals
        or not is_text(key.lstrip("+"))
        or not value
        or re.search(r"[\"'\[\]{}()$\\]", value)
    ):
        return word
    return f"{key}=" + ",".join(f"'{part.strip()}'" for part in value.split(","))


def is_text(path: str) -> bool:
    """Whether the schema has a key `path` of type text, in any variant."""
    from pww.config.schema import Config
    from pww.config.schema.lab import LabConfig

    classes: set[type[Section]] = {Config, LabConfig}
    *parents, leaf = path.split(".")
    for part in parents:
        below: set[type[Section]] = set()
        for cls in classes:
            if part in cls.model_fields:
                below |= _sections(cls.model_fields[part].annotation)
        classes = below
    return any(
        leaf in cls.model_fields and cls.model_fields[leaf].annotation is str for cls in classes
    )


def whose(path: str) -> list[str]:
    """Of a group that has variants: the tags of those with the key `path`."""
    from pww.config.schema import Config
    from pww.config.schema.lab import LabConfig

    group, _, leaf = path.partition(".")
    field = Config.model_fields.get(group) or LabConfig.model_fields.get(group)
    tag = None if field is None else field.discriminator
    if field is None or not isinstance(tag, str):
        return []
    variants = [one for one in _sections(field.annotation) if leaf in one.model_fields]
    return sorted(get_args(one.model_fields[tag].annotation)[0] for one in variants)


def _sections(annotation: Any) -> "set[type[Section]]":
    from pww.config.schema import Section

    found = (annotation, *getattr(annotation, "__args__", ()))
    return {c for c in found if isinstance(c, type) and issubclass(c, Section)}
