"""Hydra's part: overrides become one composed tree, and what Hydra refuses becomes sentences.

Hydra stops at its first error. Here the overrides that it refuses are found one by one, set aside
with a sentence each, and the rest is composed all the same, so that faults of every kind are
reported together.
"""

import difflib
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pww.config.faults import Faults, did_you_mean, flat, refusals
from pww.config.paths import CONF, PROJECT
from pww.config.words import line_of, parse, whose

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

CONFIG_NAME = "config"


@dataclass(frozen=True, slots=True)
class Source:
    """Where to compose from: the primary config's name, the tree, and folders searched after it."""

    config_name: str = CONFIG_NAME
    config_dir: Path = CONF
    extra_dirs: tuple[Path, ...] = ()


class Composer:
    """Composes override tokens; made by `composer`, which holds Hydra's global state."""

    def __init__(self, source: Source) -> None:
        from hydra._internal.config_loader_impl import ConfigLoaderImpl
        from hydra.core.config_search_path import SearchPathQuery
        from hydra.core.global_hydra import GlobalHydra

        from pww.config.read_once import ReadOnce

        self._source = source
        loader = GlobalHydra.instance().config_loader()
        assert isinstance(loader, ConfigLoaderImpl)
        for folder in source.extra_dirs:
            loader.config_search_path.prepend(
                "command-line", f"file://{folder}", anchor=SearchPathQuery(provider="schema")
            )
        # Asked directly: the loader would read every source again for each question
        self._files = loader.repository = ReadOnce(loader.config_search_path)
        self._loader = loader
        self._bases: dict[tuple[str, ...], DictConfig | None] = {}

    def compose(self, tokens: Sequence[str]) -> "DictConfig":
        """The composed tree with its `hydra` node; raises whatever Hydra raises."""
        import hydra

        return hydra.compose(
            self._source.config_name, overrides=list(tokens), return_hydra_config=True
        )

    def options(self, group: str) -> list[str]:
        """The choices of a group; [] when it is no group."""
        from hydra.core.object_type import ObjectType

        if not re.fullmatch(r"\w[\w/-]*", group):
            return []
        return sorted(set(self._files.get_group_options(group, ObjectType.CONFIG)))

    def _choices(self, group: str, base: "DictConfig") -> list[str]:
        """What `group=` takes; folders below it that are no groups of their own are choices too."""
        own, chosen = self.options(group), base.hydra.runtime.choices
        below = [g for g in self.groups(group) if own and g not in chosen]
        return own + [f"{g[len(group) + 1 :]}/{o}" for g in below for o in self.options(g)]

    def file(self, path: str) -> dict[str, Any]:
        """What a file of the tree says by itself, nothing resolved; {} if there is none."""
        from omegaconf import OmegaConf

        found = self._files.load_config(path)
        raw: Any = {} if found is None else OmegaConf.to_container(found.config, resolve=False)
        return dict(raw)

    def groups(self, above: str = "") -> list[str]:
        """Every group of ours, subgroups included, in the order of their names."""
        from hydra.core.object_type import ObjectType

        found = []
        for name in sorted(set(self._files.get_group_options(above, ObjectType.GROUP))):
            group = f"{above}/{name}" if above else name
            if group != "hydra":
                found += [group] if self.options(group) else []
                found += self.groups(group)
        return found

    def parse(self, words: Sequence[str], faults: Faults) -> list["Override"]:
        """The overrides that these words are; see `words.parse`."""
        return parse(words, loader=self._loader, faults=faults)

    def tree(
        self, overrides: Sequence["Override"], faults: Faults
    ) -> tuple["DictConfig | None", list[str]]:
        """The tree of what can be composed, and the group choices in it.

        Each override that cannot is a fault of its own.
        """
        groups = [
            o for o in overrides if self.options(o.key_or_group) and not isinstance(o.value(), dict)
        ]
        try:
            return self._whole(overrides, groups), [line_of(o) for o in groups]
        except refusals() as error:
            first = error
        try:
            base = self.compose([])
            chosen = self._sift(groups, base, faults, self._compose_with)
            base = self.compose(chosen)
            keys = [o for o in overrides if o not in groups]
            good = [*chosen, *self._sift(keys, base, faults, _apply)]
            return self.compose(good), chosen
        except refusals() as error:
            faults.add(flat(error) or flat(first))
            return None, []

    def _whole(self, overrides: Sequence["Override"], groups: Sequence["Override"]) -> "DictConfig":
        """All overrides composed; jobs that differ in values alone share what Hydra composes.

        Hydra sets values after it has composed the choices, so that setting them on a copy of what
        it composed without them is the same, and a fifth of the work. What it refuses it is asked
        again, for its own words.
        """
        from hydra._internal.config_loader_impl import ConfigLoaderImpl

        values = [o for o in overrides if o not in groups]
        chosen = tuple(line_of(o) for o in groups)
        if all(_is_plain(o) for o in values) and chosen in self._bases:
            base = self._bases[chosen]
            if base is None:
                base = self._bases[chosen] = self.compose(chosen)
            tree = deepcopy(base)
            try:
                ConfigLoaderImpl._apply_overrides_to_config(values, tree)
            except refusals():
                pass
            else:
                return tree
        tree = self.compose([line_of(o) for o in overrides])
        self._bases.setdefault(chosen)  # the first of its kind may be the only one
        return tree

    def launcher(self, tree: "DictConfig", faults: Faults) -> None:
        """Where jobs go is said by their site alone; a launcher that says otherwise is refused."""
        chosen = tree.hydra.runtime.choices["hydra/launcher"]
        site, queued = tree.hydra.runtime.choices["site"], tree.site.queue.kind == "slurm"
        if chosen == "slurm" and not queued:
            faults.add(f"hydra/launcher=slurm: site={site} has no queue; leave it out")
        elif chosen not in ("basic", "slurm"):
            where = "in the queue" if queued else "here, one after another"
            faults.add(f"hydra/launcher={chosen}: jobs at site={site} run {where}; leave it out")

    def _sift(
        self,
        overrides: Sequence["Override"],
        base: "DictConfig",
        faults: Faults,
        attempt: "Callable[[Override, DictConfig], None]",
    ) -> list[str]:
        """Those of `overrides` that Hydra accepts."""
        good = []
        for override in overrides:
            try:
                attempt(override, base)
            except refusals() as error:
                self._explain(override, base, error, faults)
            else:
                good.append(line_of(override))
        return good

    def _compose_with(self, override: "Override", base: "DictConfig") -> None:
        self.compose([line_of(override)])

    def _explain(
        self, override: "Override", base: "DictConfig", error: Exception, faults: Faults
    ) -> None:
        """One sentence on why Hydra refused `override`."""
        key, line = override.key_or_group, line_of(override)
        head = key.partition(".")[0]
        options = [] if isinstance(override.value(), dict) else self._choices(key, base)
        if override.is_sweep_override():
            typed = line.replace("'", "")  # without the quotes that a key of text got
            plain = typed.partition("=")[2]
            faults.add(
                f"{typed}: several values are a sweep; add -m, or write '{key}=\"{plain}\"' "
                "if they are one text",
                key,
            )
        elif options and not override.is_add() and override.value() not in options:
            given = line.partition("=")[2]
            faults.add(
                f"{line}: {key} is one of {', '.join(options)}{did_you_mean(given, options)}",
                key.replace("/", "."),
            )
        elif options and override.is_add():
            faults.add(f"{line}: {key} is chosen already; write {line.lstrip('+')}", key)
        elif override.is_add() and _has(base, key):
            faults.add(f"{line}: the key exists already; write {line.lstrip('+')}", key)
        elif head in faults.keys:
            # its group was refused, so whether the key exists there cannot be said
            faults.keys.add(key)
        elif not _has(base, key):
            others = [f"{head}={one}" for one in whose(key) if one in self.options(head)]
            hint = f"; it is of {' and of '.join(others)}" if 0 < len(others) < 3 else ""
            meant = [] if hint else _meant(base, key)
            faults.add(f"{line}: {_unknown(base, key, hint=hint)}", key, *meant)
        else:
            faults.add(f"{line}: {flat(error)}", key)


@contextmanager
def composer(source: Source) -> Iterator[Composer]:
    """A `Composer`; Hydra's global state is as before afterwards.

    Raises:
        ConfigError: never here; faults are collected by the caller.
    """
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    register_resolvers()
    outer = GlobalHydra.instance().hydra  # there is one when a sweeper composes as it goes
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(config_dir=str(source.config_dir), version_base="1.3"):
            yield Composer(source)
    finally:
        GlobalHydra.instance().hydra = outer


def _apply(override: "Override", base: "DictConfig") -> None:
    """Tries one key on a copy of the tree, as Hydra does after composing; raises as it does."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl

    if override.is_sweep_override():
        raise ValueError("a sweep")
    ConfigLoaderImpl._apply_overrides_to_config([override], deepcopy(base))


def _is_plain(override: "Override") -> bool:
    """`key=value` of ours: nothing added, removed or moved, and nothing of Hydra's own."""
    key = override.key_or_group
    moved = override.is_add() or override.is_force_add() or override.is_delete()
    ours = override.package is None and not key.startswith("hydra")
    return ours and not (moved or override.is_sweep_override())


def register_resolvers() -> None:
    """What `conf/` may write besides OmegaConf's own: `${product:a,b}`, `${scaled:value,number,of}`
    (value times number / of) and `${project:folder}`.

    A clone that runs without being installed finds its own plugins too.
    """
    from omegaconf import OmegaConf

    plugins = PROJECT / "launch"
    if find_spec("hydra_plugins.pww_launcher") is None and plugins.is_dir():
        sys.path.append(str(plugins))

    OmegaConf.register_new_resolver("product", _product, replace=True)
    OmegaConf.register_new_resolver("scaled", _scaled, replace=True)
    OmegaConf.register_new_resolver("project", lambda path: str(PROJECT / path), replace=True)


def _product(*factors: object) -> int:
    for factor in factors:
        if not isinstance(factor, int) or isinstance(factor, bool):
            raise ValueError(f"{factor} is not a whole number")
    return math.prod(f for f in factors if isinstance(f, int))


def _scaled(value: float, number: object, of: int) -> float:
    return value * _product(number) / of


def _has(config: "DictConfig", key: str) -> bool:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    parent, _, leaf = key.rpartition(".")
    try:
        node: Any = OmegaConf.select(config, parent) if parent else config
    except OmegaConfBaseException:
        return False
    return OmegaConf.is_dict(node) and leaf in list(node.keys())


def _keys(config: Any, prefix: str = "") -> list[str]:
    """Every dotted key below `config`, hydra's left out."""
    from omegaconf import OmegaConf

    found = []
    raw: Any = (
        OmegaConf.to_container(config, resolve=False) if OmegaConf.is_config(config) else config
    )
    for key, value in raw.items():
        if prefix or key != "hydra":
            found.append(f"{prefix}{key}")
            if isinstance(value, dict):
                found += _keys(value, f"{prefix}{key}.")
    return found


def _meant(config: "DictConfig", key: str) -> list[str]:
    return difflib.get_close_matches(key, _keys(config), n=1, cutoff=0.6)


def _unknown(config: "DictConfig", key: str, *, hint: str) -> str:
    """Which part of `key` does not exist, and what does; `hint` instead of a guess."""
    from omegaconf import OmegaConf

    parts = key.split(".")
    for depth, part in enumerate(parts):
        above = ".".join(parts[:depth])
        node: Any = OmegaConf.select(config, above) if above else config
        if not OmegaConf.is_dict(node):
            return f"{above} is a value and has no keys below it"
        names = sorted(str(k) for k in node if k != "hydra")
        if part not in node:
            where = (
                f"{above} has no key {part}; it has" if above else "no such key or group; there are"
            )
            return f"{where} {', '.join(names)}{hint or did_you_mean(key, _keys(config))}"
    return "cannot be set"
