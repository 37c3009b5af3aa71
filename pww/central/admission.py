"""Whether a delta may be merged at all: who sends it, from where, over what, after which one.

Everything is judged from the books, not from what the site says of itself: a delta weighs in a
merge by its tokens, and those follow from the spans that it names.
"""

from itertools import pairwise

from pww.central.state import State
from pww.errors import LeaseError
from pww.wire import Offer


def stranger(state: State, offer: Offer) -> str:
    """Why nobody here may send this delta, "" if its sender is the replica's living process."""
    if offer.run != state.run:
        return f"it belongs to run {offer.run}, this central serves run {state.run}"
    seat = state.seats.get(offer.replica)
    if seat is None or seat.member.incarnation != offer.incarnation:
        return f"incarnation {offer.incarnation} of {offer.replica} is unknown or was replaced"
    return ""


def fault(state: State, offer: Offer, *, staleness: int, window: int) -> str:
    """Why the delta is inadmissible, whoever holds its leases; "" if it is not."""
    if offer.base_round > state.round:
        return f"it starts from round {offer.base_round}, the central is at {state.round}"
    ours = state.hash_of(offer.base_round)
    if offer.base_hash != ours:
        return (
            f"it starts from another theta of round {offer.base_round} ({offer.base_hash[:12]}) "
            f"than this central's ({ours[:12]}): one of the two was restored from an old copy"
        )
    if offer.tokens == 0:
        return "it was computed from no tokens"
    if not offer.finite:
        return "it is not finite (nan or inf at the site)"
    if staleness > window:
        return (
            f"staleness {staleness} exceeds the window of {window} rounds (from round "
            f"{offer.base_round}, now {state.round})"
        )
    return _miscounted(state, offer) or _out_of_order(state, offer)


def chain(state: State, replica: str) -> list[str]:
    """The replica's undecided deltas, each encoded on the one before."""
    pending = state.pending.values()
    return [staged.offer.delta for staged in pending if staged.offer.replica == replica]


def _miscounted(state: State, offer: Offer) -> str:
    spans = sorted(leased.span for leased in offer.spans)
    for before, after in pairwise(spans):
        if after.start < before.stop:
            return (
                f"its spans [{before.start}, {before.stop}) and [{after.start}, {after.stop}) "
                "overlap; a block is trained once"
            )
    try:
        num_windows = sum(state.space.num_span_windows(span) for span in spans)
    except LeaseError as why:
        return str(why)
    tokens = num_windows * (state.space.window_tokens - 1)
    for name, told in (("tokens", offer.tokens), ("metrics.tokens", offer.metrics.tokens)):
        if told != tokens:
            return (
                f"it says {name}={told}, its spans hold {tokens} ({num_windows} windows of "
                f"{state.space.window_tokens - 1} targets); train exactly what is leased"
            )
    return ""


def _out_of_order(state: State, offer: Offer) -> str:
    before = chain(state, offer.replica)
    tip = before[-1] if before else state.last_merged.get(offer.replica, "")
    if offer.prev == tip:
        return ""
    if offer.prev == "" and not before and _first_of_incarnation(state, offer):
        return ""
    after, last = offer.prev or "no delta", tip or "none"
    return f"it was encoded after {after}, this replica's last one is {last}"


def _first_of_incarnation(state: State, offer: Offer) -> bool:
    return not state.ledger.rows(
        "SELECT 1 FROM deltas WHERE incarnation = ? AND outcome = 'merged' LIMIT 1",
        offer.incarnation,
    )
