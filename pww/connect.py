"""How a replica gets leases and theta: alone in its process, or from a central. Rank 0 only.

The only place on the site's side that knows both ends; `replica.loop` sees a `Session` and an
`Exchange`.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pww.clock import Clock
from pww.config import paths
from pww.config.same_model import architecture
from pww.config.schema import Config, Darl
from pww.errors import TrainerError
from pww.lease.space import BlockSpace
from pww.metrics import Metrics
from pww.replica.outbox import Entry
from pww.replica.port import Claims, CoordinatorPort
from pww.replica.session import Session
from pww.rows import Left, take_back
from pww.transport.carrier import Transfers
from pww.transport.crew import Crew
from pww.transport.exchange import Exchange
from pww.wire import Carriage

RECORDED = ("pww", "torch", "torchtitan", "tokenizers", "flwr")
"""Packages whose versions a registration carries."""


def metrics_of(config: Config, run: Path, *, group: str, step: int) -> tuple[Metrics, Left]:
    """A run's metrics, and what is left of the rows that earlier processes wrote after `step`."""
    left = take_back(run / "metrics.jsonl", after=step)
    metrics = Metrics(
        run,
        project=config.metrics.wandb.project,
        group=group,
        name=run.name,
        wandb_id=paths.wandb_id(run),
        mode=config.metrics.wandb.mode,
        config=config.model_dump(mode="json"),
    )
    return metrics, left


@dataclass(frozen=True, slots=True)
class Ends:
    """What the loop talks to, and how to let go of it (the leases to keep are named)."""

    session: Session
    exchange: Exchange
    close: Callable[[tuple[int, ...]], None]
    carriage: Carriage | None = None  # the central's choice of codecs; None: the configuration's
    counts: Callable[[], dict[str, int]] = dict  # of this process so far, by their metrics' names
    transfers: Callable[[], Transfers] = Transfers  # what a carrier moved so far
    sent: Callable[[], int] = int  # payload bytes that went up so far


@dataclass(frozen=True, slots=True)
class Start:
    """What a process brings along: its index space, model, theta(0) and what its outbox holds."""

    space: BlockSpace
    model: str  # `wire.model_digest`
    seed: Path
    last: Entry | None
    residual: str = ""  # the merged delta after which the residual there holds, "": there is none

    @property
    def claims(self) -> Claims:
        """What an earlier process of this replica left; nothing on a first start."""
        if self.last is None:
            return Claims()
        offer, verdict = self.last.offer, self.last.verdict
        claims = Claims(
            run=offer.run, last_round=offer.base_round, theta_round=offer.base_round,
            theta_hash=offer.base_hash, residual=self.residual,
        )  # fmt: skip
        if verdict is not None:
            return replace(claims, last_round=verdict.round)
        leases = tuple(leased.lease for leased in offer.spans)
        return replace(claims, leases=leases, deltas=(offer.delta,))


def connect(
    config: Config,
    run: Path,
    start: Start,
    *,
    clock: Clock,
    stop: threading.Event,
    crew: Crew | None = None,
) -> Ends:
    """Registers this process and returns its two ends; `crew` helps with uploads.

    Raises:
        Refused: another live process has the replica id, or the run, corpus or model differ; or
            the central does not allow the key of the bundle.
        CentralError: what answers is not the central that the bundle belongs to.
        StateError: the bundle cannot be used.
        TrainerError: the model is larger than what may travel.
        Stopped: nobody answered and somebody asked to stop.
    """
    if config.central.url == "none":
        return _alone(config, run, start, clock=clock, stop=stop)
    return _federated(config, run, start, clock=clock, stop=stop, crew=crew)


def session_of(
    port: CoordinatorPort,
    config: Config,
    start: Start,
    *,
    darl: Darl,
    node_key: str,
    clock: Clock,
    stop: threading.Event,
) -> Session:
    """The session of this process over `port`; not registered yet."""
    return Session(
        port,
        replica=config.replica_id,
        node_key=node_key,
        space=start.space,
        model=start.model,
        architecture=architecture(config.model),
        darl=darl,
        clock=clock,
        stop=stop,
        versions=versions(),
        claims=start.claims,
    )


def _alone(config: Config, run: Path, start: Start, *, clock: Clock, stop: threading.Event) -> Ends:
    """The central's books and merge in this process, their state in the run's own folder."""
    from pww.central.aggregator import Aggregator
    from pww.central.coordinator import Coordinator
    from pww.central.inprocess import InProcessExchange
    from pww.central.ledger import FILE, Ledger

    state = run / "central"
    state.mkdir(exist_ok=True)
    ledger = Ledger(state / FILE)
    try:
        books = Coordinator(
            ledger, start.space, darl=config.darl, aggregator_port=0, clock=clock,
            staleness_window=config.diloco.staleness_window,
        )  # fmt: skip
        merger = Aggregator(
            books, folder=state, diloco=config.diloco, clock=clock,
            keep_deltas=config.central.keep_deltas,
        )  # fmt: skip
        # The run folder is locked: an earlier process of this replica, however it ended, is dead.
        books.evict(config.replica_id)
        session = session_of(
            books, config, start, darl=config.darl.model_copy(update={"ahead": False}),
            node_key="", clock=clock, stop=stop,
        )  # fmt: skip
        session.register()
    except BaseException:
        ledger.close()
        raise
    exchange = InProcessExchange(merger, replica=config.replica_id, seed=start.seed)

    def close(keep: tuple[int, ...]) -> None:
        exchange.close()
        session.leave(keep)
        ledger.close()

    return Ends(session, exchange, close, sent=lambda: exchange.sent_bytes)


def _federated(
    config: Config, run: Path, start: Start, *, clock: Clock, stop: threading.Event,
    crew: Crew | None,
) -> Ends:  # fmt: skip
    """The lease protocol over HTTP, theta and deltas over Flower; one key for both."""
    import httpx
    import numpy as np

    from pww.federation.fleet import FleetSite
    from pww.federation.signing import Signer
    from pww.replica.carriers import carrier_of
    from pww.replica.coordinator_client import HttpCoordinator
    from pww.replica.federated import FederatedExchange
    from pww.replica.opening import Who
    from pww.transport.bundle import Bundle

    random = np.random.default_rng()
    bundle = None
    if config.central.bundle != "none":
        folder = paths.PROJECT / config.central.bundle
        bundle = Bundle.read(folder, replica=config.replica_id, clock=clock)
    signer = Signer.new(clock=clock) if bundle is None else Signer(bundle.key)
    port = HttpCoordinator(
        config.central.url, config.transport, clock=clock, stop=stop, random=random, bundle=bundle
    )
    session = session_of(
        port,
        config,
        start,
        darl=config.darl,
        node_key=signer.public_pem.decode(),
        clock=clock,
        stop=stop,
    )
    try:
        registered = session.register()
        carriage = registered.carriage
        carrier = None
        if carriage is not None:
            carrier = carrier_of(
                carriage, config, run=session.run, clock=clock,
                authorize=partial(port.authorize, Who(config.replica_id, session.incarnation)),
                stop=stop, random=random, tls=None if bundle is None else bundle.tls, crew=crew,
            )  # fmt: skip
        transport = config.transport
        if carrier is None:
            _check_size(start, theirs_mb=registered.limit_mb, ours_mb=transport.limit_mb)
        else:  # the central chooses what lies beside a message, by its own limit
            transport = transport.model_copy(update={"limit_mb": registered.limit_mb})
        aggregator_port = registered.aggregator_port
        host = httpx.URL(config.central.url).host
        fleet = FleetSite(
            f"[{host}]:{aggregator_port}" if ":" in host else f"{host}:{aggregator_port}",
            transport,
            signer=signer,
            clock=clock,
            stop=stop,
            random=random,
            tls=None if bundle is None else bundle.tls,
        )
        exchange = FederatedExchange(
            fleet,
            run=session.run,
            replica=config.replica_id,
            incarnation=session.incarnation,
            model=start.model,
            seed=start.seed,
            folder=run / "theta",
            limit_mb=transport.limit_mb,
            inline_mb=0 if carriage is None else carriage.inline_mb,
            carrier=carrier,
            poll_s=config.transport.poll_s,
            clock=clock,
            stop=stop,
            reregister=session.reregister,
            check=session.check,
        )
    except BaseException:
        session.leave()
        port.close()
        raise

    def close(keep: tuple[int, ...]) -> None:
        session.leave(keep)
        exchange.close()
        if carrier is not None:
            carrier.close()
        port.close()

    def counts() -> dict[str, int]:
        found = exchange.counts
        return {**found, "retries": found["retries"] + port.num_retries}

    moved = Transfers if carrier is None else carrier.transfers
    return Ends(session, exchange, close, carriage, counts, moved, sent=lambda: exchange.sent_bytes)


def _check_size(start: Start, *, theirs_mb: int, ours_mb: int) -> None:
    """Refuses a model that cannot travel before it is trained; in fp32 no payload is larger."""
    size_mb = start.seed.stat().st_size / 1e6
    if size_mb > min(theirs_mb, ours_mb):
        raise TrainerError(
            f"theta is {size_mb:.1f} MB, but transport.limit_mb is {theirs_mb} at the central and "
            f"{ours_mb} here: raise it at both, or use a smaller model"
        )


def versions() -> dict[str, str]:
    """Versions of the packages that decide what a phase computes."""
    found = {}
    for name in RECORDED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return found
