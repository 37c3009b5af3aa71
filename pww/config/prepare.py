"""A command line becomes checked configurations, one a job, or every fault of all of them at once.

Where a key is at fault its composed default stands in, so that the rules on all other keys can
still be checked; rules that read a key at fault stay silent.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from pww.config import lab_model
from pww.config.check import check
from pww.config.check_lab import check_lab
from pww.config.compose import Composer, Source, composer
from pww.config.faults import Faults
from pww.config.inherited import never_over_another, never_taken_away
from pww.config.refused import explain
from pww.config.resolve import plain, spread
from pww.config.schema import Config, Section
from pww.config.schema.lab import LabConfig
from pww.config.words import sweep
from pww.errors import ConfigError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig


@dataclass(frozen=True, slots=True)
class Shape:
    """What a tree of `conf/` is to be: its primary config, its schema and its rules."""

    config_name: str
    model: type[Section]
    check: Callable[[Any, Callable[[str], bool]], list[str]]
    unfit: Callable[[Mapping[str, Any]], str] = lambda values: ""  # of a model's file; why
    elsewhere: frozenset[str] = frozenset()  # sections of a model's file that are not read


RUN = Shape("config", Config, lambda config, at_fault: check(config, at_fault=at_fault))
LAB = Shape(
    "lab", LabConfig, lambda config, at_fault: check_lab(config, at_fault=at_fault),
    unfit=lab_model.unfit, elsewhere=lab_model.ELSEWHERE,
)  # fmt: skip

Refine = Callable[[Any, frozenset[str]], Any]
"""A program's own last check, given the keys that the user set; it may raise ConfigError."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What will run: one configuration a job, and the words as Hydra is to see them."""

    configs: tuple[Config, ...]
    words: tuple[str, ...]
    multirun: bool
    sweeper: str = "basic"  # any other chooses its jobs itself: configs holds one without the sweep


def prepare(
    words: Sequence[str],
    *,
    defaults: Sequence[str] = (),
    source: Source | None = None,
    multirun: bool = False,
    refine: Refine | None = None,
    shape: Shape = RUN,
) -> Prepared:
    """Composes and checks every job of a command line; nothing is started or written.

    Args:
        words: override tokens of the user.
        defaults: override tokens of the program, which the user's beat.
        multirun: expand sweeps (also where `hydra.mode=MULTIRUN` says so).
        shape: what is composed; its configurations are of its model.

    Raises:
        ConfigError: every fault of every job.
    """
    faults = Faults()
    configs: list[Config] = []
    with composer(source or Source(config_name=shape.config_name)) as hydra:
        ours = hydra.parse(defaults, faults)
        theirs = hydra.parse(words, faults)
        parsed = [*ours, *theirs]
        multirun = multirun or any(o.input_line == "hydra.mode=MULTIRUN" for o in theirs)
        given = frozenset(key for override in theirs for key in _given(override))
        sweeper = _sweeper(parsed) if multirun else "basic"
        fixed = [o for o in parsed if not o.is_sweep_override()]
        jobs = [fixed] if sweeper != "basic" else sweep(parsed, faults) if multirun else [parsed]
        for job in jobs:
            # Each job starts from the faults of the words themselves
            mine = Faults(keys=set(faults.keys))
            config = _one(hydra, job, mine, multirun=multirun, shape=shape)
            sound = frozenset(key for key in given if not mine.touches(key))
            if config is not None and refine is not None:
                try:
                    config = refine(config, sound)
                except ConfigError as error:
                    mine.sentences += error.faults
            if config is not None:
                configs.append(config)
            for sentence in mine.sentences:
                faults.add(sentence)
    if faults.sentences:
        raise ConfigError(faults.sentences)
    lines = tuple(o.input_line for o in parsed if o.input_line is not None)
    return Prepared(tuple(configs), lines, multirun, sweeper)


def _sweeper(overrides: Sequence["Override"]) -> str:
    chosen = [str(o.value()) for o in overrides if o.key_or_group == "hydra/sweeper"]
    return chosen[-1] if chosen else "basic"


def validate(values: Mapping[str, Any]) -> Config:
    """A plain tree as a `Config`, all rules checked.

    Raises:
        ConfigError: every fault.
    """
    faults = Faults()
    config = _validated(values, faults, {})
    if config is not None:
        faults.sentences += check(config)
    if config is None or faults.sentences:
        raise ConfigError(faults.sentences)
    return config


def find(words: Sequence[str], *, source: Source, defaults: Sequence[str] = ()) -> list[str]:
    """Why Hydra cannot compose these words, a sentence each; [] if it can."""
    faults = Faults()
    with composer(source) as hydra:
        hydra.tree(hydra.parse([*defaults, *words], faults), faults)
    return faults.sentences


def _given(override: "Override") -> Iterator[str]:
    """The dotted keys that one word sets: `++optim={lr: 1}` sets optim.lr too."""
    todo = [(override.key_or_group.replace("/", "."), override.value())]
    while todo:
        key, value = todo.pop()
        yield key
        if isinstance(value, Mapping):
            todo += [(f"{key}.{name}", below) for name, below in value.items()]


def _one(
    hydra: Composer,
    overrides: Sequence["Override"],
    faults: Faults,
    *,
    multirun: bool,
    shape: Shape,
) -> Config | None:
    """One job; with faults, what it is where nothing is at fault, or None if that is no whole."""
    overrides = [o for o in overrides if not _is_unfit(hydra, o, faults, shape)]
    tree, groups = hydra.tree(overrides, faults)
    if tree is None:
        return None
    if multirun:
        hydra.launcher(tree, faults)
    values, derived = plain(tree, faults)
    spread(faults, derived)
    typed = {key.partition(".")[0] for override in overrides for key in _given(override)}
    for section in shape.elsewhere - typed:
        values.pop(section, None)
    if isinstance(values.get("model"), dict) and values["model"].get("kind") == "hf":
        _changes(hydra, tree, values["model"], overrides, faults)
    config = _validated(values, faults, derived, shape=shape)
    if config is None or faults.keys:
        base, _ = plain(hydra.compose(groups), Faults())
        config = _repaired(values, base, faults, shape=shape)
    if config is not None:
        for sentence in shape.check(config, faults.touches):
            faults.add(sentence)
    return config


def _is_unfit(hydra: Composer, override: "Override", faults: Faults, shape: Shape) -> bool:
    """Whether it chooses a model that this program has no place for; says why."""
    if override.key_or_group != "model" or isinstance(override.value(), Mapping):
        return False
    why = shape.unfit(hydra.file(f"model/{override.value()}"))
    if why:
        faults.add(f"model={override.value()}: {why}", "model")
    return bool(why)


def _changes(
    hydra: Composer,
    tree: "DictConfig",
    model: Mapping[str, Any],
    overrides: Sequence["Override"],
    faults: Faults,
) -> None:
    """What a model of `transformers` is, and what its file changes, must be of one mind."""
    never_taken_away(overrides, faults)
    choice = tree.hydra.runtime.choices["model"]
    alone, _ = plain(hydra.compose([f"model={choice}"]), Faults())
    given = {override.key_or_group for override in overrides}
    never_over_another(choice, model, alone["model"], given, faults)


def _validated(
    values: Mapping[str, Any],
    faults: Faults,
    derived: dict[str, set[str]],
    *,
    shape: Shape = RUN,
) -> Config | None:
    try:
        return cast(Config, shape.model.model_validate(values))
    except ValidationError as error:
        found = list(explain(error.errors(), model=shape.model))
    known = [f for f in found if f.key not in faults.keys]
    # What was typed is at fault before what was derived from it
    for fault in known:
        if fault.key not in derived:
            faults.add(fault.sentence, fault.key)
    spread(faults, derived)
    for fault in known:
        if fault.key not in faults.keys:
            faults.add(fault.sentence, fault.key)
    spread(faults, derived)
    return None


def _repaired(
    values: Mapping[str, Any], base: Mapping[str, Any], faults: Faults, *, shape: Shape
) -> Config | None:
    """`values` with the composed default in place of every key at fault, if that makes a whole."""
    repaired: dict[str, Any] = deepcopy(dict(values))
    for key in faults.keys:
        parts = key.partition("[")[0].split(".")
        here: Any = repaired
        there: Any = base
        for part in parts[:-1]:
            there = there.get(part) if isinstance(there, Mapping) else None
            here = here.get(part) if isinstance(here, dict) else None
        if not isinstance(here, dict):
            continue
        if isinstance(there, Mapping) and parts[-1] in there:
            here[parts[-1]] = deepcopy(there[parts[-1]])
        else:
            here.pop(parts[-1], None)
    try:
        return cast(Config, shape.model.model_validate(repaired))
    except ValidationError:
        return None
