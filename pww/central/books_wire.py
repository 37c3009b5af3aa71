"""What is said between an aggregator and its coordinator's books: calls, answers, faults, as JSON.

An answer is `+` and the value, or `-` and a `Fault`. Both ends are one user's processes of one
version of pww on one machine; what comes is validated all the same.
"""

import json
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter
from pydantic_core import to_jsonable_python

from pww.errors import InUse, LeaseError, PwwError, Refused, StateError
from pww.wire import Count, Digest, Message, Offer, ReplicaId, RoundReport, Seconds, Token
from pww.wire.types import Label, TokenOrNone

GOOD, BAD = b"+", b"-"
Generation = Annotated[str, Field(pattern=r"^round-[0-9]{6,18}$")]


class Attach(Message):
    """First on every connection: which process this is, and its version of pww."""

    call: Literal["attach"] = "attach"
    process: Token
    version: Label


class Attached(Message):
    """Whose books these are. `life` is another one with every start of the coordinator."""

    life: Token
    run: Token
    round: Count


class Ask(Message):
    """A question without arguments; the name is the books' method, `head` all properties."""

    call: Literal["ask"] = "ask"
    what: Literal[
        "head", "staged", "expected", "live", "silent", "exhausted", "status", "unsent"
    ]  # fmt: skip


class Head(Message):
    """Where the run stands."""

    run: Token
    model: str
    round: Count
    generation: str
    state_hash: str
    committed_windows: Count
    report: RoundReport | None


class AskReports(Message):
    """`Books.reports`."""

    call: Literal["reports"] = "reports"
    after: Count


class AskTokens(Message):
    """`Books.tokens_total`."""

    call: Literal["tokens_total"] = "tokens_total"
    round: Count


class AskVerdicts(Message):
    """`Books.verdicts`."""

    call: Literal["verdicts"] = "verdicts"
    replica: ReplicaId


class Receive(Message):
    """`Books.receive`."""

    call: Literal["receive"] = "receive"
    offer: Offer


class Reject(Message):
    """`Books.reject`."""

    call: Literal["reject"] = "reject"
    delta: Token
    reason: str


class CloseRound(Message):
    """`Books.close_round`."""

    call: Literal["close_round"] = "close_round"
    merged: tuple[Token, ...]
    generation: Generation
    state_hash: Digest
    report: RoundReport


class Publish(Message):
    """`Books.seed`."""

    call: Literal["seed"] = "seed"
    generation: Generation
    state_hash: Digest


class Follow(Message):
    """Who joined and left since; waits for news. It says that all up to `seen` was obeyed."""

    call: Literal["follow"] = "follow"
    life: TokenOrNone  # of the coordinator that numbered what was seen
    seen: Count


class Note(Message):
    """The last that is known of one replica's member."""

    replica: ReplicaId
    incarnation: Token
    node_key: str
    joined: bool


class News(Message):
    """The answer to `Follow`, oldest first; `seq` is what the next one may say it has seen."""

    life: Token
    seq: Count
    notes: tuple[Note, ...]


BooksCall = (
    Attach | Ask | AskReports | AskTokens | AskVerdicts | Receive | Reject | CloseRound | Publish
    | Follow
)  # fmt: skip
CALL: TypeAdapter[BooksCall] = TypeAdapter(Annotated[BooksCall, Field(discriminator="call")])
FAULTS = {kind.__name__: kind for kind in (PwwError, StateError, InUse, LeaseError)}


class Fault(Message):
    """A `PwwError` on its way to the other process."""

    kind: str
    message: str
    code: str = ""  # of a `Refused`
    retry_after_s: Seconds = 0.0

    @classmethod
    def of(cls, fault: PwwError) -> "Fault":
        """What `fault` says."""
        kind = type(fault).__name__
        if isinstance(fault, Refused):
            return cls(
                kind="Refused", message=str(fault), code=fault.code,
                retry_after_s=fault.retry_after_s,
            )  # fmt: skip
        return cls(kind=kind if kind in FAULTS else "PwwError", message=str(fault))

    def error(self) -> PwwError:
        """The same fault here."""
        if self.kind == "Refused":
            return Refused(self.message, code=self.code, retry_after_s=self.retry_after_s)
        return FAULTS.get(self.kind, PwwError)(self.message)


def as_json(value: object) -> bytes:
    """JSON of messages, values and containers of them, which validates back to the same."""
    return json.dumps(to_jsonable_python(value)).encode()
