"""What a replica measures beside the training: speed against the devices' peak, time, traffic."""

from collections.abc import Callable
from dataclasses import dataclass

from pww.clock import Clock
from pww.config.schema import Config
from pww.trainer.api import PhaseResult
from pww.transport.carrier import Transfers
from pww.transport.exchange import Theta
from pww.wire import MAX_SPEED, Gauges

TERA = 1e12


@dataclass(frozen=True, slots=True)
class Hardware:
    """What the ranks compute on; `peak_flops_per_s` is of one of them, 0 if it is not known."""

    device: str = ""
    ranks: int = 0
    peak_flops_per_s: float = 0.0

    @classmethod
    def of(cls, config: Config) -> "Hardware":
        """As the site's configuration says."""
        peak = config.site.peak_tflops
        return cls(
            config.site.device_kind, config.parallel.ranks, 0.0 if peak == "none" else peak * TERA
        )


class Meters:
    """Collects over one process' life; `read` gives all of it with a phase."""

    def __init__(
        self,
        hardware: Hardware,
        *,
        clock: Clock,
        transfers: Callable[[], Transfers] = Transfers,
        sent: Callable[[], int] = int,
    ) -> None:
        """`transfers`: what a carrier has moved so far; `sent`: payload bytes, by whatever way."""
        self._hardware, self._clock, self._transfers = hardware, clock, transfers
        self._sent, self._bytes_down = sent, 0
        self._seen: Theta | None = None
        self._idle_s = clock.monotonic()  # since when the replica waits for its next phase
        self._busy_s = 0.0  # of that time it evaluated or saved
        self.wait_s = self.exchange_s = 0.0

    def got(self, theta: Theta) -> None:
        """A theta is here; the same one counts once."""
        if theta is not self._seen:
            self._seen = theta
            self._bytes_down += theta.received_bytes

    def busy(self, seconds: float) -> None:
        """So long there was something to do although no phase ran."""
        self._busy_s += seconds

    def begins(self) -> None:
        """A phase begins its steps."""
        self.wait_s = max(0.0, self._clock.monotonic() - self._idle_s - self._busy_s)

    def exchanged(self, seconds: float) -> None:
        """A delta has its verdict; from now on the replica waits for its next phase."""
        self.exchange_s = seconds
        self._idle_s, self._busy_s = self._clock.monotonic(), 0.0

    def read(self, result: PhaseResult) -> Gauges:
        """All of it, for the offer of a phase."""
        one, moved = self._hardware, self._transfers()
        seconds = max(result.seconds, 1e-9)
        return Gauges(
            device=one.device, ranks=one.ranks,
            flops_per_s=min(result.flops_per_token * result.tokens / seconds, MAX_SPEED),
            peak_flops_per_s=min(one.peak_flops_per_s * one.ranks, MAX_SPEED),
            memory_bytes=result.memory_bytes, wait_seconds=self.wait_s,
            exchange_seconds=self.exchange_s, bytes_up=self._sent(), bytes_down=self._bytes_down,
            up_bytes_per_s=_per_s(moved.bytes_up, moved.seconds_up),
            down_bytes_per_s=_per_s(moved.bytes_down, moved.seconds_down),
        )  # fmt: skip


def columns(gauges: Gauges) -> dict[str, float | int | str]:
    """As a phase's row has them, which times its own exchange; what nobody measured is left out."""
    told = gauges.model_dump(exclude={"exchange_seconds"})
    flops, peak = told.pop("flops_per_s"), told.pop("peak_flops_per_s")
    if flops:
        told["tflops"] = flops / TERA
    if flops and peak:
        told["mfu"] = gauges.mfu
    always = ("wait_seconds", "bytes_up", "bytes_down")
    return {name: value for name, value in told.items() if value or name in always}


def _per_s(size_bytes: int, seconds: float) -> float:
    return min(size_bytes / seconds, MAX_SPEED) if seconds > 0 else 0.0
