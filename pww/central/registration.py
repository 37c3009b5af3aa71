"""Who may join, by the rules of identity: refusals with both sides' values and the remedy."""

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from pww.central.membership import Seat
from pww.central.state import State, differences
from pww.errors import Refused
from pww.wire import PROTOCOL, Register

READY_S = 2.0
"""How soon a site asks again whether there is an aggregator."""


def check(state: State, message: Register, *, detect_s: float, architecture: str) -> None:
    """Passes a registration or says why not; changes nothing. `architecture` is the central's.

    Raises:
        Refused: bad_request, wrong_run, wrong_space, wrong_model, unknown_incarnation or
            replica_taken.
    """
    if message.protocol != PROTOCOL:
        raise Refused(
            f"protocol {message.protocol} at the site, {PROTOCOL} at the central: install the same "
            "version of pww on both",
            code="bad_request",
        )
    _check_key(message.node_key)
    _check_run(state, message)
    ours = state.space.info()
    if message.space != ours:
        both = differences(message.space, ours, left="site", right="central")
        raise Refused(
            f"other data or other leases ({both}): use the same data.*, darl.* and tokenizer on "
            "both sides",
            code="wrong_space",
        )
    if state.model not in ("", message.model):
        raise Refused(
            f"another model: site {message.model}, central {state.model} (of the first site): use "
            "the same model.* everywhere, or start a new run with run.name=...",
            code="wrong_model",
        )
    if message.architecture and architecture and message.architecture != architecture:
        raise Refused(
            "another architecture: the tensors may be alike, but model.* of the site differs from "
            "the central's; start both with the same model=... and model.* settings",
            code="wrong_model",
        )
    if state.ledger.rows(
        "SELECT 1 FROM members WHERE incarnation = ? AND (state = 'replaced' OR replica != ?)",
        message.incarnation,
        message.replica,
    ):
        raise Refused(
            f"incarnation {message.incarnation} was replaced by a newer process of its replica or "
            "belongs to another one: start the process again",
            code="unknown_incarnation",
        )
    _check_key_free(state, message)
    seat = state.seats.get(message.replica)
    if seat is not None and seat.member.incarnation != message.incarnation:
        _check_free(seat, message.replica, state.clock.monotonic(), detect_s)


def check_single(state: State, message: Register) -> None:
    """Without an aggregator a run is one site's: another one waits, for nobody would merge them.

    It waits and is not refused for good, since an aggregator that is being started, or started
    again, looks the same; and who has a seat already comes back to it at any time.

    Raises:
        Refused: not_ready.
    """
    site = message.replica.partition("/")[0]
    sites = {replica.partition("/")[0] for replica in state.seats}
    if sites and site not in sites:
        raise Refused(
            f"site {site} cannot join {', '.join(sorted(sites))} yet: this coordinator has no "
            "aggregator, and without one a run is of one site. Start it on the same machine with "
            "central.roles=[aggregator]; the site waits for it",
            code="not_ready",
            retry_after_s=READY_S,
        )


def _check_key(pem: str) -> None:
    """A node key is checked before its member is seated: a seat is durable and outlives a restart.

    The network layer takes the same keys; here it is not imported, since a replica that trains
    alone has coordinator and site in one process, and no network.
    """
    if not pem:
        return
    try:
        key = load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise Refused(
            "node_key is no PEM public key on the curve P-384: send the one of this process, or "
            "an empty one for a process that sends no deltas",
            code="bad_request",
        )


def _check_run(state: State, message: Register) -> None:
    if message.run not in ("", state.run):
        raise Refused(
            f"this central serves run {state.run}, your checkpoint belongs to run {message.run}: "
            "start with a new run.name, or point central.url at the central of that run",
            code="wrong_run",
        )
    if message.last_round > state.round:
        raise Refused(
            f"this central is at round {state.round} of run {state.run}, {message.replica} saw "
            f"round {message.last_round}: central is behind: its state was lost; restore its state "
            "folder, or start with a new run.name on both sides",
            code="wrong_run",
        )
    ours = state.hash_of(message.theta_round)
    if message.theta_hash not in ("", ours):
        raise Refused(
            f"theta of round {message.theta_round} is {message.theta_hash} at {message.replica}, "
            f"{ours or 'not there'} at this central of run {state.run}: one of the two was "
            "restored from an old copy; restore the newer one, or start with a new run.name on "
            "both sides",
            code="wrong_run",
        )


def _check_key_free(state: State, message: Register) -> None:
    """One key, one live process: it is what a Flower node is known by."""
    for replica, seat in state.seats.items():
        same = message.node_key and seat.member.node_key.strip() == message.node_key.strip()
        if same and replica != message.replica and seat.state == "live":
            raise Refused(
                f"the node key of {message.replica} is the one of {replica}, which is live: every "
                "replica has a key of its own",
                code="replica_taken",
            )


def _check_free(seat: Seat, replica: str, now_s: float, detect_s: float) -> None:
    """A replica id is free when its last process said goodbye or was silent for long enough."""
    silent_s = now_s - seat.seen_s
    if seat.state != "live" or silent_s >= detect_s:
        return
    left_s = detect_s - silent_s
    raise Refused(
        f"replica {replica} is running already (incarnation {seat.member.incarnation[:8]}, heard "
        f"{max(0.0, silent_s):.1f} s ago): give this process its own id with replica=..., or wait "
        f"{left_s:.1f} s if that one is dead",
        code="replica_taken",
        retry_after_s=left_s,
    )
