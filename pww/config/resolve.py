"""Interpolations become values; all that cannot be resolved become sentences together.

OmegaConf resolves a tree or raises at the first failure; this walks it leaf by leaf.
"""

import re
from typing import TYPE_CHECKING, Any

from pww.config.faults import Faults, did_you_mean

if TYPE_CHECKING:
    from omegaconf import DictConfig

_TABLE = re.compile(r"\$\{([\w.]+)\.\$\{([\w.]+)\}(?:\.[\w.]+)?\}")
"""A choice from a table, `${table.${key}.…}`: when it fails, `key` is at fault."""
_REFERENCE = re.compile(r"(?<![\w:.])[a-z_]\w*(?:\.\w+)+")


def plain(config: "DictConfig", faults: Faults) -> tuple[dict[str, Any], dict[str, set[str]]]:
    """The tree without `hydra` and without what failed, and what each derived key came from."""
    walk = _Walk(faults)
    values = walk.down(config, "")
    assert isinstance(values, dict)
    # A wrong choice from a table first: what else failed may have come from it
    rest = [failed for failed in walk.failed if not _wrong_choice(config, *failed[:2], faults)]
    spread(faults, walk.derived)
    for here, raw, message in rest:
        if here not in faults.keys:
            _explain(here, raw, message, faults)
    return values, walk.derived


def spread(faults: Faults, derived: dict[str, set[str]]) -> None:
    """Marks what was derived from a key at fault: it needs no second sentence."""
    changed = True
    while changed:
        changed = False
        for key, sources in derived.items():
            if key not in faults.keys and any(faults.touches(source) for source in sources):
                faults.keys.add(key)
                changed = True


class _Walk:
    """One pass over the leaves; what cannot be resolved is set aside."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self.derived: dict[str, set[str]] = {}
        self.failed: list[tuple[str, str, str]] = []  # key, interpolation, OmegaConf's message

    def down(self, node: Any, path: str) -> Any:
        """The plain value of a node."""
        from omegaconf import OmegaConf

        is_dict = OmegaConf.is_dict(node)
        raw: Any = OmegaConf.to_container(node, resolve=False)
        found: list[tuple[Any, Any]] = []
        for key in list(node.keys()) if is_dict else range(len(node)):
            if not path and key == "hydra":
                continue
            here = (f"{path}.{key}" if path else str(key)) if is_dict else f"{path}[{key}]"
            text = str(raw[key])
            if "${" in text and isinstance(raw[key], str):
                self.derived[here] = set(_REFERENCE.findall(text))
            ok, value = self._value(node, key, here, text)
            if ok:
                found.append((key, self.down(value, here) if OmegaConf.is_config(value) else value))
        return dict(found) if is_dict else [value for _, value in found]

    def _value(self, node: Any, key: Any, here: str, raw: str) -> tuple[bool, Any]:
        """(True, value), or (False, None) after noting that there is none."""
        from omegaconf.errors import (
            InterpolationToMissingValueError,
            MissingMandatoryValue,
            OmegaConfBaseException,
        )

        try:
            return True, node[key]
        except MissingMandatoryValue:
            self._faults.add(f"{here}: has no value yet; give {here}=…", here)
        except InterpolationToMissingValueError:
            self._faults.keys.add(here)  # the missing key has its own sentence
        except OmegaConfBaseException as error:
            if "is not a whole number" in str(error):
                self._faults.keys.add(here)  # the factor has its own sentence
            else:
                self.failed.append((here, raw, str(error)))
        return False, None


def _wrong_choice(root: "DictConfig", here: str, raw: str, faults: Faults) -> bool:
    """Whether `here` failed because a key chooses what its table does not have; says so."""
    from omegaconf import OmegaConf

    table = _TABLE.search(raw)
    if table is None:
        return False
    choices, chosen = OmegaConf.select(root, table[1]), OmegaConf.select(root, table[2])
    if not OmegaConf.is_dict(choices) or chosen in choices:
        return False
    names = [str(name) for name in choices]
    near = did_you_mean(str(chosen), names)
    faults.add(f"{table[2]}={chosen}: one of {', '.join(names)} ({table[1]}){near}", table[2], here)
    return True


def _explain(here: str, raw: str, message: str, faults: Faults) -> None:
    environment = re.search(r"Environment variable '(\w+)' not found", message)
    missing = re.search(r"Interpolation key '([^']+)' not found", message)
    if environment is not None:
        name = environment[1]
        reason = f"the environment variable {name} is not set; set it, or give {here}=…"
    elif missing is not None:
        reason = f"there is no key {missing[1]}; give {here}=… or a key that exists"
    else:
        reason = f"{message.splitlines()[0]}; give {here}=…"
    faults.add(f"{here}={raw}: cannot be resolved: {reason}", here)
