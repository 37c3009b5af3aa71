"""Every fault that a user or a remote can cause, as one tree; none of them is shown as a traceback.

    PwwError                    base; its text is the whole message for a person
    ├── ConfigError             the configuration is wrong: all faults, one a line (exit 2)
    ├── DataError               corpus, manifest or tokenizer unusable
    ├── PayloadError            bytes that are not what they claim: digest, names, shapes, non-finite
    ├── CheckpointError         a checkpoint cannot be written or read; the previous one is intact
    ├── LeaseError              the lease protocol refused a request
    ├── StateError              a state folder or port is taken, or belongs to another run
    ├── TrainerError            the inner loop cannot run or go on
    ├── CentralError            talking to the central
    │   ├── Unreachable         no answer within the deadline; trying again may help
    │   └── Refused             the central answered no, with its reason; trying again will not help
    └── Stopped                 someone asked this process to stop (exit 130)

A message gives the value, the rule and the remedy.
"""

from collections.abc import Sequence


class PwwError(Exception):
    """Base of all faults whose text is meant for a person."""

    exit_code = 1


class ConfigError(PwwError):
    """The configuration is wrong; `faults` holds one sentence for each fault."""

    exit_code = 2

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(self.faults))


class DataError(PwwError):
    """A corpus, its manifest or its tokenizer cannot be used."""


class PayloadError(PwwError):
    """Received or stored bytes are not what they claim to be."""


class CheckpointError(PwwError):
    """A checkpoint could not be written or read; what was complete before is intact."""


class LeaseError(PwwError):
    """The lease protocol refused a request."""


class StateError(PwwError):
    """A state folder or a port is in use, or belongs to another run."""


class TrainerError(PwwError):
    """The inner loop cannot run or go on."""


class CentralError(PwwError):
    """Talking to the central failed."""


class Unreachable(CentralError):
    """No usable answer within the deadline; the same call may succeed later."""


class Refused(CentralError):
    """The central said no. `code` is one of the `wire.RefusalCode` values."""

    def __init__(self, message: str, *, code: str) -> None:
        self.code = code
        super().__init__(message)


class Stopped(PwwError):
    """Someone asked this process to stop (Ctrl-C, SIGTERM); what was durable stays so."""

    exit_code = 130
