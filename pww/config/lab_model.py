"""Rules of a study's model: which choices of `conf/model` the lab can train, and what fits them."""

from collections.abc import Iterator, Mapping
from typing import Any

from pww.config.check_model import flavour_fits, heads_fit, homes_fit
from pww.config.schema.lab import LabConfig, ModelTask

ELSEWHERE = frozenset({"parallel"})
"""Sections that a model's file may set for a run, and that change no number here."""


def unfit(values: Mapping[str, Any]) -> str:
    """Why the lab cannot train what a file of `conf/model` describes; "" if it can."""
    if values.get("model", {}).get("kind") != "resnet":
        return ""
    return (
        "has running statistics (BatchNorm), which training changes and no method of the lab "
        "exchanges; use a language model, such as model=qwen3_debug"
    )


def model_fits(config: LabConfig) -> Iterator[str]:
    """A model for the task that trains one, and of sizes that go together."""
    task, model = config.task, config.model
    if model is None:
        if isinstance(task, ModelTask):
            yield "model=null: task=model trains a model of conf/model; use model=qwen3_debug"
    elif not isinstance(task, ModelTask):
        yield f"model={model.name}: task={task.kind} has a model of its own; add task=model"
    yield from heads_fit(config)
    yield from flavour_fits(config)
    yield from homes_fit(config)
