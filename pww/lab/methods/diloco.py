"""H inner steps apart, then an outer step: DiLoCo, local SGD, SparseLoCo, and what varies them.

Absent workers and such with fewer steps, streaming fragments, and an outer step that comes late.

* by tau rounds: `theta_{t+1} = theta_t - outer(merged_{t - tau})`, and every phase starts from the
theta that there is. The eager variant is in `eager`.
* by n inner steps: workers go on from their own parameters, and what they moved meanwhile is kept:
`x = theta_{t+1} + (x_now - x_sent)`, as `pww.replica.overlap` has it. What is on its way when the
run ends arrives then.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from pww.config.schema import Outer
from pww.config.schema.lab import DilocoMethod, LabConfig, LabDiloco
from pww.errors import ConfigError
from pww.lab.exchange import Exchange
from pww.lab.inner import Inner
from pww.lab.seeds import generator
from pww.lab.stack import Shapes, Stack, places
from pww.lab.traffic import Traffic
from pww.outer import get_optimizer, weights


@dataclass(frozen=True, slots=True)
class Flight:
    """A merged delta on its way: when it arrives, and what its workers had when they sent."""

    due: int  # the step after which it is there
    columns: slice
    sent: torch.Tensor  # (M, columns)


class Diloco:
    """One published theta; each worker starts a phase from it."""

    def __init__(
        self, config: LabConfig, stack: Stack, method: DilocoMethod, diloco: LabDiloco
    ) -> None:
        self._config, self._stack, self._method = config, stack, method
        self._outer, self._inner_steps = diloco.outer, diloco.inner_steps
        self._exchange = Exchange(config, stack.shapes, decay=method.feedback_decay)
        self._inner = Inner(config.optim, stack.values, stack.grads)
        self._theta = stack.values[0].clone()
        self._momentum = torch.zeros_like(self._theta)
        self._late: deque[tuple[torch.Tensor, int]] = deque()
        self._flights: deque[Flight] = deque()
        self._fragments = fragments(stack.shapes, method.fragments)
        self._places = places(stack.shapes)
        self._draws = generator(config.seed, "participation")
        self._limits = method.worker_steps or (self._inner_steps,) * config.workers
        self._present = [True] * config.workers
        self._steps = 0
        self.rounds = 0

    @property
    def traffic(self) -> Traffic:
        """Bytes of a worker so far."""
        return self._exchange.traffic

    def active(self) -> Sequence[bool]:
        """Who takes part in this round and has steps left in it."""
        at = self._steps % self._inner_steps
        if at == 0 and self._method.participation < 1:
            drawn = torch.rand(self._config.workers, generator=self._draws)
            self._present = (drawn < self._method.participation).tolist()
        return [
            here and at < limit for here, limit in zip(self._present, self._limits, strict=True)
        ]

    def theta(self) -> torch.Tensor:
        """The published parameters."""
        return self._theta

    def step(self, lr: float) -> None:
        """An inner step; where a phase ends, the exchange and the outer step."""
        at = self._steps % self._inner_steps
        active = [
            here and at < limit for here, limit in zip(self._present, self._limits, strict=True)
        ]
        self._inner.step(lr, active=active)
        self._steps += 1
        count = len(self._fragments)
        for number, names in enumerate(self._fragments):
            if self._steps % self._inner_steps == (number + 1) * self._inner_steps // count % (
                self._inner_steps
            ):
                self._end_phase(names)
        self._land()
        if self._steps % self._inner_steps == 0:
            self.rounds += 1

    def _end_phase(self, names: Sequence[str]) -> None:
        """Exchanges these tensors and steps their part of theta, now or in some steps."""
        columns = slice(self._places[names[0]].start, self._places[names[-1]].stop)
        theta, values = self._theta[columns], self._stack.values[:, columns]
        who = [worker for worker, here in enumerate(self._present) if here]
        if self._is_whole(who):
            theta.copy_(values[who[0]])
            self._send(theta - values, who, names)  # for its bytes
        else:
            late = (torch.zeros_like(theta), 0)  # nobody is there
            if who:
                late = (self._send(theta - values, who, names), len(who))
            self._late.append(late)
            if self._method.overlap_steps:
                due = min(self._steps + self._method.overlap_steps, self._config.lab.steps)
                self._flights.append(Flight(due, columns, values.clone()))
                return
            if len(self._late) > self._method.delay:
                self._outer_step(columns)
        values.copy_(theta.expand_as(values))

    def _land(self) -> None:
        """Moves the workers over to the theta of deltas that arrive now, with what they did since.

        Deltas arrive in the order in which they were sent.
        """
        while self._flights and self._flights[0].due == self._steps:
            flight = self._flights.popleft()
            self._outer_step(flight.columns)
            values = self._stack.values[:, flight.columns]
            values.sub_(flight.sent).add_(self._theta[flight.columns])

    def _outer_step(self, columns: slice) -> None:
        """Steps theta by the delta that was sent first; not at all if nobody sent."""
        delta, contributors = self._late.popleft()
        if contributors:
            get_optimizer(self._outer, contributors=contributors).step(
                self._theta[columns], self._momentum[columns], delta, partial=False
            )

    def _send(self, deltas: torch.Tensor, who: Sequence[int], names: Sequence[str]) -> torch.Tensor:
        """What becomes of all workers' deltas, of whom `who` take part."""
        rows = deltas if len(who) == len(deltas) else deltas[list(who)]
        sent = self._exchange.fed_back(rows, round_=self.rounds, who=who, names=names)
        return self._exchange.merged(sent, shares=self._shares(who), names=names)

    def _shares(self, who: Sequence[int]) -> list[float]:
        """The mean's weights of those who take part."""
        tokens = [1] * self._config.workers
        if self._method.weighting == "tokens":
            tokens = list(self._limits)
        if self._method.divide_by == "expected":
            every = weights(tokens, [0] * len(tokens), 0.0)
            return [every[worker] / self._method.participation for worker in who]
        return weights([tokens[worker] for worker in who], [0] * len(who), 0.0)

    def _is_whole(self, who: Sequence[int]) -> bool:
        """Whether theta becomes the only worker's parameters as they are.

        By algebra it does; `theta - (theta - x)` in fp32 would lose the last bit of some x.
        """
        alone = len(who) == 1 and self._method.divide_by == "present"
        plain = self._exchange.exact and self._method.delay == self._method.overlap_steps == 0
        return alone and plain and _full(self._outer) and self._config.merge.kind != "krum"


def _full(outer: Outer) -> bool:
    return outer.optimizer == "sgd" and (outer.lr == 1.0 or outer.solo_full_step)


def fragments(shapes: Shapes, count: int) -> list[list[str]]:
    """The tensors in `count` runs of neighbours, of sizes as equal as whole tensors allow.

    Raises:
        ConfigError: there are not as many tensors.
    """
    names = list(shapes)
    if count > len(names):
        raise ConfigError(
            [f"method.fragments={count}: the model has {len(names)} tensors; use at most that many"]
        )
    ends = list(accumulate(place.stop - place.start for place in places(shapes).values()))
    found: list[list[str]] = []
    first = 0
    for number in range(1, count + 1):
        goal = ends[-1] * number / count
        last = first + 1
        while last < len(names) - (count - number) and ends[last] <= goal:
            last += 1
        last = len(names) if number == count else last
        found.append(names[first:last])
        first = last
    return found
