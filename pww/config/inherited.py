"""What a model's file changes of one configuration of `transformers` never goes over another one's.

The sizes of `model=hf/llama` are that file's. A `model.config` of the user's own has sizes too, and
nothing in the finished tree tells which of the two was meant: only the command line does.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pww.config.faults import Faults

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

OWN = "model=hf/folder"
"""The choice that changes nothing."""


def never_over_another(
    choice: str,
    values: Mapping[str, Any],
    base: Mapping[str, Any],
    given: Collection[str],
    faults: Faults,
) -> None:
    """Faults if changes of the file `model=<choice>` would go over another configuration than its.

    Args:
        values: the keys of `model` as composed.
        base: the same as that file alone has them.
        given: the keys that the command line sets one by one.
    """
    config, theirs = values.get("config"), base.get("changes")
    if not theirs or config == base.get("config"):
        return
    left = [f"{k}={v}" for k, v in theirs.items() if f"model.changes.{k}" not in given]
    if left:
        faults.add(
            f"model.config={config}: model={choice} changes {', '.join(left)}, which would go over "
            f"what that configuration says; use {OWN} model.config={config}, or give a "
            "model.changes.NAME=VALUE for each of them",
            "model.config",
        )


def never_taken_away(overrides: Sequence["Override"], faults: Faults) -> None:
    """Faults if `model.changes` is given whole: Hydra merges it, so what it lacks would stay."""
    for override in overrides:
        key, value = override.key_or_group, override.value()
        if key == "model.changes" or (key == "model" and "changes" in _keys(value)):
            faults.add(
                f"{override.input_line}: adds to the changes of the model's file and takes none "
                f"away; give model.changes.NAME=VALUE, or {OWN} model.config=…, which changes "
                "nothing",
                "model.changes",
            )


def _keys(value: object) -> list[str]:
    return [str(key) for key in value] if isinstance(value, Mapping) else []
