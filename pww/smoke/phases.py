"""How long an inner step takes and how long an outer step: real phases of a real engine, timed.

The smoke test and the bench of replicas in one allocation share it. An outer step is timed from
when the slowest rank has come to it until the slowest is through.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import torch

from pww.clock import Clock
from pww.config.schema import Config
from pww.replica.collective import Collective
from pww.replica.groups import Allocation
from pww.replica.live import pieces
from pww.smoke.book import Check
from pww.smoke.reduce import device_of, settle
from pww.smoke.tell import complaints, gathered, shortened
from pww.trainer.api import Live

HORIZONS = (10, 100, 500)
STEPS, ROUNDS = 4, 2
"""A phase, and phases that count, after one that warms up."""
PROGRESS = 0.05
CHUNK = 1 << 20


class Never:
    """Nobody asks to stop."""

    def agreed(self) -> bool:
        """Never."""
        return False


class Quiet:
    """Nobody is told of a step."""

    def __call__(
        self, *, step: int, done: int, of: int, loss: float, tokens: int, lr: float
    ) -> None:
        """Takes it in."""


@dataclass(slots=True)
class Times:
    """Seconds, one for each phase that counts, and the losses of all."""

    inner: list[float] = field(default_factory=list)  # of one step
    outer: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def overhead(self, inner_steps: int) -> float:
        """What an outer step adds to a phase of so many inner steps, as a share of it."""
        return median(self.outer) / (inner_steps * median(self.inner))


def measured(
    trainer: Live,
    collective: Collective | None,
    place: Allocation,
    windows: Sequence[int],
    *,
    steps: int,
    rounds: int,
    clock: Clock,
    device: torch.device,
    after: Callable[[int], None] = lambda number: None,
    progress: float = PROGRESS,
) -> Times:
    """Collective: trains `rounds` + 1 phases of `steps` on the same windows; the first warms up.

    `after` is called after each outer step, with the phase's number.
    """
    times = Times()
    for number in range(rounds + 1):
        result = trainer.run(
            windows, progress=0.0 if number == 0 else progress, progress_end=progress,
            on_step=Quiet(), stop=Never(),
        )  # fmt: skip
        times.losses.append(result.loss)
        if number:
            slowest = max(one for (one,) in place.across.numbers(result.seconds))
            times.inner.append(slowest / steps)
        if collective is not None:
            settle(device)
            place.across.numbers(0.0)
            began_s = clock.monotonic()
            collective.step(result.tokens)
            settle(device)
            took_s = max(s for (s,) in place.across.numbers(clock.monotonic() - began_s))
            if number:
                times.outer.append(took_s)
        after(number)
    return times


def windows_of(config: Config, *, replica: int, num_windows: int) -> list[int]:
    """A phase's windows: other ones for each replica, as long as there are."""
    num = STEPS * config.optim.batch_windows
    return [(replica * num + one) % num_windows for one in range(num)]


def checks(
    config: Config, trainer: Live, collective: Collective | None, place: Allocation, *,
    num_windows: int, clock: Clock,
) -> Iterator[Check]:  # fmt: skip
    """Collective: trains a little, and what came of it."""
    times = measured(
        trainer, collective, place,
        windows_of(config, replica=place.replica, num_windows=num_windows),
        steps=STEPS, rounds=ROUNDS, clock=clock, device=device_of(config),
    )  # fmt: skip
    bad = [loss for loss in times.losses if not math.isfinite(loss)]
    told = complaints(place.across, f"has a loss of {bad[0]}" if bad else "")
    if told:
        yield Check("training", "wrong", f"{told}: lower optim.lr, or look at the device")
        return
    losses = gathered(place.across, [times.losses[0], times.losses[-1]])
    first, last = (sum(column) / len(losses) for column in zip(*losses, strict=True))
    steps = (ROUNDS + 1) * STEPS
    yield Check(
        "training", "right",
        f"{config.model.name} on {config.data.name}, {steps} steps, loss {first:.3f} to {last:.3f}",
    )  # fmt: skip
    if collective is not None:
        yield _alike(trainer, place)
    yield from shown(config, times)


def shown(config: Config, times: Times) -> Iterator[Check]:
    """The milliseconds."""
    inner_ms = 1e3 * median(times.inner)
    yield Check(
        "inner step", "shown", f"{inner_ms:.1f} ms for {config.optim.batch_windows} windows",
        {"inner_step_ms": round(inner_ms, 3)},
    )  # fmt: skip
    if not times.outer:
        yield Check("overhead", "unchecked", "one replica: its outer step is not among its ranks")
        return
    outer_ms = 1e3 * median(times.outer)
    shares = {num: times.overhead(num) for num in HORIZONS}
    told = ", ".join(f"{share:.2%} at H={num}" for num, share in shares.items())
    figures: Mapping[str, float] = {
        "outer_step_ms": round(outer_ms, 3),
        **{f"outer_overhead_h{num}": round(share, 6) for num, share in shares.items()},
    }
    yield Check("outer step", "shown", f"{outer_ms:.1f} ms, which adds {told}", figures)


def _alike(trainer: Live, place: Allocation) -> Check:
    """All replicas hold the same theta after an outer step, rank j that of every rank j."""
    mine = fingerprint(trainer, ranks=place.inner.size)
    rows = gathered(place.outer, mine)
    odd = [f"replica {number}" for number, one in enumerate(rows) if one != rows[0]]
    wrong = f"holds another theta than {shortened(odd)}" if odd else ""
    told = complaints(place.across, wrong)
    if told:
        return Check("theta", "wrong", f"after an outer step {told}")
    return Check("theta", "right", "the same in all replicas after an outer step, bit for bit")


def fingerprint(trainer: Live, *, ranks: int) -> str:
    """SHA-256 of this rank's shard of every parameter."""
    digest = hashlib.sha256()
    for piece in pieces(trainer.module, ranks=ranks):
        digest.update(piece.name.encode())
        for start in range(0, piece.values.numel(), CHUNK):
            part = piece.values[start : start + CHUNK].contiguous().view(torch.uint8)
            digest.update(part.cpu().numpy().tobytes())
    return digest.hexdigest()
