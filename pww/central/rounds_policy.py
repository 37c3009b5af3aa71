"""When a round closes: a function of who is expected, who delivered, and for how long.

A round merges as soon as everybody who is expected has delivered; or when a quorum has, and the
grace window has passed since. A site that is still training then delivers late, and is discounted.
"""

import math
from collections.abc import Collection

GRACE_FLOOR_S = 1.0
"""Two sites of equal speed never finish in the same instant; short rounds still wait this long."""


def quorum_size(num_replicas: int, quorum: float) -> int:
    """How many of `num_replicas` are a quorum: the share rounded up, and at least one."""
    return max(1, math.ceil(quorum * num_replicas - 1e-9))  # 0.07 * 100 is 7.000000000000001


def has_quorum(*, expected: Collection[str], delivered: Collection[str], quorum: float) -> bool:
    """Whether enough of those who take part in this round have delivered."""
    everybody = {*expected, *delivered}
    return len(set(delivered)) >= quorum_size(len(everybody), quorum)


def grace_s(*, since_publish_s: float, longest_phase_s: float, grace: float) -> float:
    """How long a quorum waits for the rest: a share of the round's length.

    The length is the time since theta was published, but no longer than the longest phase that was
    delivered: a central that had no sites for a night does not wait an hour for the second one.
    """
    return max(GRACE_FLOOR_S, grace * min(since_publish_s, longest_phase_s))


def is_due(
    *,
    expected: Collection[str],
    delivered: Collection[str],
    quorum: float,
    waited_s: float,
    grace_s: float,
) -> bool:
    """Whether to merge now; `waited_s` is the time since the quorum was reached."""
    if not delivered:
        return False
    if not set(expected) - set(delivered):
        return True
    if not has_quorum(expected=expected, delivered=delivered, quorum=quorum):
        return False
    return waited_s >= grace_s


class Patience:
    """How long a round has been waited for; times are monotonic."""

    def __init__(self, now_s: float, *, quorum: float, grace: float) -> None:
        self._quorum, self._grace = quorum, grace
        self._published_s = now_s
        self._quorum_s: float | None = None  # since when there is a quorum

    def published(self, now_s: float) -> None:
        """A new theta is out: the next round begins."""
        self._published_s, self._quorum_s = now_s, None

    def forget(self) -> None:
        """Nobody has delivered (any more)."""
        self._quorum_s = None

    def is_due(
        self,
        now_s: float,
        *,
        expected: Collection[str],
        delivered: Collection[str],
        longest_phase_s: float,
    ) -> bool:
        """Whether to merge now."""
        if not has_quorum(expected=expected, delivered=delivered, quorum=self._quorum):
            self._quorum_s = None
        elif self._quorum_s is None:
            self._quorum_s = now_s
        reached_s = now_s if self._quorum_s is None else self._quorum_s
        window_s = grace_s(
            since_publish_s=reached_s - self._published_s,
            longest_phase_s=longest_phase_s,
            grace=self._grace,
        )
        return is_due(
            expected=expected, delivered=delivered, quorum=self._quorum,
            waited_s=now_s - reached_s, grace_s=window_s,
        )  # fmt: skip
