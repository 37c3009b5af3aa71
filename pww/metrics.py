"""What a run measured: `metrics.jsonl` always, wandb beside it; wandb never touches training.

One object a line with `split` (train | eval | outer | residual), `step`, `round`, `tokens`, `loss`,
then what else is known.
"""

import logging
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

from pww.log import JsonLines

log = logging.getLogger(__name__)

MAX_EXPONENT = 700.0
"""exp of more is no float any more."""
Split = Literal["train", "eval", "outer", "residual"]


class Metrics:
    """Appends rows to `folder/metrics.jsonl` and mirrors them to wandb.

    A resumed run keeps its rows (but for those that `rows.take_back` drops) and its wandb id
    (`wandb_id`, any string that is stable across requeues).
    """

    def __init__(
        self,
        folder: Path,
        *,
        project: str,
        group: str,
        name: str,
        wandb_id: str,
        mode: Literal["offline", "online", "disabled"],
        config: Mapping[str, object],
    ) -> None:
        self._lines = JsonLines(folder / "metrics.jsonl")
        self._lossy = False  # the disk refused a row; training goes on without
        self._wandb: Any = None
        if mode != "disabled":
            self._wandb = _start_wandb(
                folder, project=project, group=group, name=name, wandb_id=wandb_id, mode=mode,
                config=config,
            )  # fmt: skip

    def row(
        self, split: Split, *, step: int, round: int, tokens: int, loss: float, **more: object
    ) -> None:
        """Writes one row; `tokens` counts what this process's stream has trained on so far."""
        row: dict[str, object] = {
            "split": split, "step": step, "round": round, "tokens": tokens, "loss": loss, **more,
        }  # fmt: skip
        try:
            self._lines.write(row)
        except OSError as fault:
            if not self._lossy:
                log.warning("rows are missing in metrics.jsonl from here on: %s", fault)
            self._lossy = True
        if self._wandb is None:
            return
        flat = {f"{split}/{key}": value for key, value in row.items() if _is_number(value)}
        try:
            self._wandb.log({**flat, "round": round, "step": step, "tokens": tokens})
        except Exception as fault:
            log.warning("wandb is off from here on: %s", fault)
            self._wandb = None

    def close(self) -> None:
        """Flushes both; safe to call twice."""
        self._lines.close()
        if self._wandb is not None:
            try:
                self._wandb.finish()
            except Exception as fault:
                log.warning("wandb did not finish: %s", fault)
            self._wandb = None


def perplexity(loss: float) -> float:
    """Of a loss that is pooled over tokens; a mean of perplexities is none."""
    return math.exp(min(loss, MAX_EXPONENT))


class SetLoss(Protocol):
    """The loss over another corpus' windows."""

    @property
    def name(self) -> str:
        """Of the corpus, as columns have it."""

    @property
    def loss(self) -> float:
        """Pooled over tokens."""

    @property
    def tokens(self) -> int:
        """How many."""


def set_columns(sets: Iterable[SetLoss]) -> dict[str, float]:
    """An `eval` row's columns of other corpora."""
    columns: dict[str, float] = {}
    for one in sets:
        columns[f"loss_{one.name}"] = one.loss
        columns[f"perplexity_{one.name}"] = perplexity(one.loss)
        columns[f"tokens_{one.name}"] = one.tokens
    return columns


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _start_wandb(
    folder: Path,
    *,
    project: str,
    group: str,
    name: str,
    wandb_id: str,
    mode: Literal["offline", "online"],
    config: Mapping[str, object],
) -> Any:
    """A wandb run, or None with a warning: no fault of wandb's may end a run."""
    try:
        import wandb

        run = wandb.init(
            project=project,
            group=group,
            name=name,
            id=wandb_id,
            dir=str(folder),
            mode=mode,
            config=dict(config),
            resume="allow" if mode == "online" else None,
            settings=wandb.Settings(
                console="off", silent=True, x_disable_stats=True, disable_git=True, save_code=False
            ),
        )
        run.define_metric("train/*", step_metric="step")
        run.define_metric("eval/*", step_metric="round")
        run.define_metric("outer/*", step_metric="round")
        run.define_metric("residual/*", step_metric="round")
    except Exception as fault:
        log.warning("wandb could not start (%s); metrics.jsonl has everything", fault)
        return None
    return run
