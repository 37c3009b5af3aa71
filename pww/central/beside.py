"""What an invitation to a phase says of theta, and which file lies beside it."""

from pathlib import Path
from typing import Literal

from pww.central.published import Published
from pww.errors import NotYet
from pww.wire import Invitation

Beside = Literal["theta", "update", "nothing"]


def to_a_phase(
    blank: Invitation, published: Published, *, holds: int, inline_bytes: int, downloads: bool
) -> tuple[Invitation, Path | None]:
    """`blank` with the current theta, for a site that has the one of round `holds`.

    Raises:
        NotYet: what it names is not yet where sites fetch it.
        StateError: there is no theta yet, or it is damaged.
    """
    current = published.current
    if not published.is_out:
        raise NotYet(f"theta of round {current.info.round} is on its way to where sites fetch it")
    beside, path = choose(published, holds=holds, inline_bytes=inline_bytes, downloads=downloads)
    told = {
        "state_hash": current.info.state_hash, "payload": current.info.theta,
        "updates": published.updates, "beside": beside,
    }  # fmt: skip
    return blank.model_copy(update=told), path


def choose(
    published: Published, *, holds: int, inline_bytes: int, downloads: bool
) -> tuple[Beside, Path | None]:
    """The file for a site that has theta of round `holds` (-1: not known), and where it is.

    A site one round behind gets the update, if it fits into a message of `inline_bytes`. One that
    is further behind, and whatever does not fit, `downloads` what it needs; where nobody offers
    that, theta is beside the invitation whatever its size.
    """
    current, updates = published.current, published.updates
    behind = current.info.round - holds
    if behind == 0:
        return "nothing", None
    chain = updates[-behind:] if holds >= 0 and 0 < behind <= len(updates) else ()
    if len(chain) == 1 and (chain[0].payload.size_bytes <= inline_bytes or not downloads):
        return "update", published.update_path(chain[0])
    if downloads and (chain or current.info.theta.size_bytes > inline_bytes):
        return "nothing", None
    return "theta", current.theta
