"""The network: requests and answers that get lost, doubled, late and out of order.

One call is what one HTTP request is. The far side's code runs in a greenlet of its own; it goes on
when the caller has given up, and what it answers then reaches nobody. `Port` is the site's end of
the lease protocol: it keeps the promises of `pww.replica.coordinator_client`, by the same `Retry`.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import greenlet
import httpx
from pydantic import ValidationError
from simulation.kernel import Crash, Machine, World, running

from pww.errors import CentralError, PwwError, Refused
from pww.transport.retry import Retry, TryAgain
from pww.wire import (
    Acquire,
    Acquired,
    Done,
    Granted,
    Heartbeat,
    Instruction,
    Leave,
    Message,
    Refusal,
    Register,
    Registered,
    Release,
)

Reply = TypeVar("Reply", bound=Message)
KINDS: dict[str, type[Message]] = {
    "register": Register, "acquire": Acquire, "heartbeat": Heartbeat, "release": Release,
    "leave": Leave,
}  # fmt: skip


@dataclass
class Weather:
    """How bad the network is."""

    latency_s: float = 0.01
    lose: float = 0.0
    double: float = 0.0
    delay: float = 0.0
    delay_s: float = 20.0


class Network:
    """Between the sites and the central."""

    def __init__(self, world: World, weather: Weather) -> None:
        self._world, self.weather = world, weather
        self.cut: dict[str, float] = {}  # by machine: nothing passes until then
        self._sent = 0
        self._newest: dict[tuple[str, str], int] = {}

    def _hop(self, what: str, ends: tuple[str, str], arrive: Callable[[], None]) -> None:
        """One packet's way; it may never arrive."""
        world, weather = self._world, self.weather
        if any(self.cut.get(end, -1.0) > world.now for end in ends):
            world.faults["partition"] += 1
            return
        if world.chance(weather.lose):
            world.inject(f"lost_{what}", ends[0])
            return
        self._sent += 1
        number = self._sent
        delay_s = weather.latency_s * world.uniform(0.5, 2.0)
        if world.chance(weather.delay):
            delay_s += world.uniform(0.0, weather.delay_s)
            world.inject(f"delayed_{what}", ends[0])

        def arrived() -> None:
            if number < self._newest.get(ends, 0):
                world.faults["reordered"] += 1
            self._newest[ends] = max(number, self._newest.get(ends, 0))
            arrive()

        world.at(delay_s, arrived)

    def call(
        self, to: Machine, handle: Callable[[], object], *, timeout_s: float, doubles: bool = True
    ) -> Any:
        """The result of `handle`, which runs on `to`.

        Raises:
            TryAgain: no answer came in time, or the far side is not there.
        """
        me = greenlet.getcurrent()
        here = me.machine
        here.check()
        world = self._world
        ends, back = (here.name, to.name), (to.name, here.name)
        waiting = [True]

        def answer(value: object) -> None:
            if waiting:
                waiting.clear()
                me.switch(value)

        def reply(value: object) -> None:
            self._hop("reply", back, lambda: world.at(0.0, lambda: answer(value), machine=here))

        def served() -> None:
            value: object
            try:
                value = handle()
            except Crash:
                reply(TryAgain("connection reset"))
                raise
            except TryAgain as why:
                value = why
            reply(value)

        def arrive() -> None:
            if to.dead:
                fault = TryAgain("connection refused")
                fault.__cause__ = httpx.ConnectError("connection refused")
                reply(fault)
            else:
                to.start(served, "request")

        self._hop("request", ends, arrive)
        if doubles and world.chance(self.weather.double):
            world.inject("doubled", here.name)
            late_s = world.uniform(0.0, self.weather.delay_s)

            def again() -> None:
                with suppress(TryAgain):
                    handle()

            world.at(late_s, lambda: None if to.dead else to.start(again, "double"))
        world.at(timeout_s, lambda: answer(TryAgain("timed out")), machine=here)
        value = world.park()
        if isinstance(value, TryAgain):
            raise value
        return value


class Port:
    """`pww.replica.session.CoordinatorPort` over the simulated network."""

    def __init__(
        self, network: Network, to: Machine, target: Callable[[], Any], *, clock: Any, stop: Any,
        timeout_s: float, deadline_s: float, first_s: float, max_s: float,
        granted: Callable[[str, int], None],
    ) -> None:  # fmt: skip
        self._granted = granted
        self._network, self._to, self._target = network, to, target
        self._timeout_s, self._deadline_s = timeout_s, deadline_s
        machine = running()
        assert machine is not None
        self._retry = Retry(
            "the central", first_s=first_s, max_s=max_s, clock=clock, stop=stop,
            random=machine.world,
        )  # fmt: skip

    def register(self, message: Register, /) -> Registered:
        return self._ask("register", message, Registered, float("inf"))

    def acquire(self, message: Acquire, /) -> Acquired:
        return self._ask("acquire", message, Acquired, self._deadline_s)

    def heartbeat(self, message: Heartbeat, /) -> Instruction:
        return self._ask("heartbeat", message, Instruction, self._deadline_s)

    def release(self, message: Release, /) -> Done:
        return self._ask("release", message, Done, self._deadline_s)

    def leave(self, message: Leave, /) -> Done:
        return self._ask("leave", message, Done, 3.0)

    def close(self) -> None:
        """Nothing is open."""

    def _ask(self, name: str, message: Message, kind: type[Reply], deadline_s: float) -> Reply:
        body = message.model_dump_json()

        def once() -> Reply:
            text = self._network.call(
                self._to, lambda: self._serve(name, body), timeout_s=self._timeout_s
            )
            try:
                return kind.model_validate_json(text)
            except ValidationError:
                refusal = Refusal.model_validate_json(text)
            raise Refused(refusal.message, code=refusal.code, retry_after_s=refusal.retry_after_s)

        return self._retry.run(once, what=name, deadline_s=deadline_s)

    def _serve(self, name: str, body: str) -> str:
        text = serve(self._target(), name, body)
        if '"kind":"granted"' in text:
            answer = Acquired.model_validate_json(text).answer
            assert isinstance(answer, Granted)
            self._granted(Acquire.model_validate_json(body).key, answer.lease.id)
        return text


def serve(desk: Any, name: str, body: str) -> str:
    """What `pww.central.http` does with one request."""
    try:
        message = KINDS[name].model_validate_json(body)
        return str(desk.answer(message).model_dump_json())
    except Refused as why:
        refusal = Refusal(code=why.code, message=str(why), retry_after_s=why.retry_after_s)  # type: ignore[arg-type]
        return refusal.model_dump_json()
    except CentralError:
        raise
    except PwwError as why:  # a full disk, say: HTTP 500
        raise TryAgain(f"HTTP 500 {why}") from why
