"""Every fault that a user or a remote can cause, as one tree; none of them is shown as a traceback.

    PwwError                    base; its text is the whole message for a person
    ├── ConfigError             the configuration is wrong: all faults, one a line (exit 2)
    ├── DataError               corpus, manifest or tokenizer unusable
    │   └── WorkerLost          … because a tokenising process died; going on may help
    ├── PayloadError            bytes that are not what they claim: digest, names, shapes
    │   └── NotFiniteError      values that are nan or inf, or would become so
    ├── CheckpointError         a checkpoint cannot be written or read; the previous one is intact
    ├── LeaseError              the lease protocol refused a request
    ├── StateError              a state folder or port is taken, or belongs to another run
    │   └── InUse               … by a live process: free when that one ends
    ├── TrainerError            the inner loop cannot run or go on
    ├── LabError                a study, its log or its report cannot be used as asked
    ├── CentralError            talking to the central
    │   ├── Unreachable         no answer within the deadline; trying again may help
    │   └── Refused             the central answered no, with its reason; trying again will not help
    ├── NotYet                  what is asked for is on its way; the same call works later
    └── Stopped                 someone asked this process to stop (exit 130)

A message gives the value, the rule and the remedy.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any


class PwwError(Exception):
    """Base of all faults whose text is meant for a person."""

    exit_code = 1


class ConfigError(PwwError):
    """The configuration is wrong; `faults` holds one sentence for each fault."""

    exit_code = 2

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(self.faults))

    def __reduce__(self) -> tuple[Any, ...]:
        """Keeps `faults` when the error travels from rank to rank."""
        return type(self), (self.faults,)


class DataError(PwwError):
    """A corpus, its manifest or its tokenizer cannot be used."""


class WorkerLost(DataError):
    """A tokenising process died; what is finished is kept, and the same call goes on from there."""


class PayloadError(PwwError):
    """Received or stored bytes are not what they claim to be."""


class NotFiniteError(PayloadError):
    """Values are nan or inf, or would become so; what the bytes claim may be right."""


class CheckpointError(PwwError):
    """A checkpoint could not be written or read; what was complete before is intact."""


class LeaseError(PwwError):
    """The lease protocol refused a request."""


class StateError(PwwError):
    """A state folder or a port is in use, or belongs to another run."""


class InUse(StateError):
    """Another live process holds a folder; it is free when that one ends."""


class TrainerError(PwwError):
    """The inner loop cannot run or go on."""


class LabError(PwwError):
    """A study of the lab, its log or its report cannot be used as asked."""


class CentralError(PwwError):
    """Talking to the central failed."""


class Unreachable(CentralError):
    """No usable answer within the deadline; the same call may succeed later."""


class Refused(CentralError):
    """The central said no. `code` is one of the `wire.RefusalCode` values.

    `retry_after_s` above zero: the reason goes away by then (a dead twin's detection time).
    """

    def __init__(self, message: str, *, code: str, retry_after_s: float = 0.0) -> None:
        self.code = code
        self.retry_after_s = retry_after_s
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        """Keeps `code` when the error travels from rank to rank."""
        return partial(type(self), code=self.code, retry_after_s=self.retry_after_s), (str(self),)


class NotYet(PwwError):
    """What is asked for is on its way, and nobody waits for it: the same call works later."""


class Stopped(PwwError):
    """Someone asked this process to stop (Ctrl-C, SIGTERM); what was durable stays so."""

    exit_code = 130
