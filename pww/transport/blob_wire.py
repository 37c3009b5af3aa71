"""What the blob store and its clients say to each other, beside the bytes themselves.

    POST  /v1/blobs/DIGEST/SIZE          begins or goes on with an upload   -> BlobState
    PUT   /v1/blobs/DIGEST/SIZE/PIECE    one piece                          -> 204
    POST  /v1/blobs/DIGEST/SIZE/commit   checks and publishes the whole     -> BlobState
    POST  /v1/blobs/DIGEST/SIZE/PIECE/CRC32C   of a whole that is wrong: is this piece right? If
                                         not (422), it is missing again     -> 204
    DELETE /v1/blobs/DIGEST/SIZE         gives an upload up                 -> 204
    HEAD, GET /v1/blobs/DIGEST           the object or a range of it; its ETag is the digest, and
                                         a range comes with its CRC-32C
    PUT   /v1/blobs/probe                bytes that are only counted           -> 204
    GET   /v1/blobs/probe/SIZE           bytes that mean nothing: both measure the way

Refusals are a `wire.Refusal` with a status that says what to do:
"""

from typing import Annotated

from pydantic import Field, model_validator

from pww.wire import Count, Message

ROUTE = "/v1/blobs/"
PROBE = "probe"
PROBE_ROUTE = f"{ROUTE}{PROBE}"
PROBE_BYTES = 4 << 20
"""The most of one request."""
CRC = "x-pww-crc32c"
"""Header of a range on its way down: CRC-32C in eight hex digits. It finds damage early, so that
only that range travels again; the law is the BLAKE3. On the way up nobody reads a file twice for
what hardly ever happens: the sums are compared where the BLAKE3 of the whole is wrong."""
BUSY = 202
"""The whole is being checked: ask for the commit again."""
ABSENT = 404
"""No such object."""
BEGIN_AGAIN = 409
"""The upload is not as the client thinks (pieces are missing, it was collected): begin again."""
DAMAGED = 422
"""A piece is not what was said of it, or the whole not what its name says."""
FULL = 507
"""No room; what is there stays, and the same request may work later."""


class BlobState(Message):
    """How far an upload is: `missing` are half-open runs of piece numbers."""

    complete: bool
    piece_bytes: Annotated[int, Field(ge=1, le=64 << 20)]
    missing: Annotated[list[tuple[Count, Count]], Field(max_length=1 << 16)]

    @model_validator(mode="after")
    def _runs_ascend(self) -> "BlobState":
        """Refuses runs that are empty, overlap or go back."""
        end = -1
        for start, stop in self.missing:
            if not end < start < stop:
                raise ValueError("missing pieces must be ascending runs")
            end = stop
        return self


def etag(digest: str) -> str:
    """The strong entity tag of an object."""
    return f'"{digest}"'
