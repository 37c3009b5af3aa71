"""Which file lies beside an invitation: the update, theta whole, or nothing."""

from pathlib import Path
from typing import Literal

from pww.central.published import Published

Beside = Literal["theta", "update", "nothing"]


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
