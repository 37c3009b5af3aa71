"""The ranks of one replica as one actor: rank 0 talks to the network, all learn the outcome.

A network wait never sits inside a collective: rank 0 waits in a thread and tells the others every
second that it still waits, so no process-group timeout can fire however long a central is away.
"""

import gc
import logging
import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store
from torch.distributed.distributed_c10d import _get_default_store
from torch.distributed.rendezvous import rendezvous

from pww.config.schema import Config
from pww.errors import PwwError, Stopped, TrainerError
from pww.trainer import interfaces, place, signals
from pww.trainer.device import take

T = TypeVar("T")
TICK_S = 1.0
"""While rank 0 waits, the ranks tell each other this often that they are there."""
TIMEOUT_S = 600.0
"""A rank that is this late in a collective counts as dead. Longer than any step, load or save."""
CLOSE_S = 10.0
"""How long a rank that ends waits for the others to end too."""
log = logging.getLogger(__name__)


def init_ranks(config: Config) -> None:
    """Joins the process group that the environment names (`place.found`); alone if it does not.

    Raises: TrainerError: the variables do not fit each other or the run, nobody answers, or there
    is no such network.
    """
    where = place.found(os.environ)
    if where.how != "torchrun" and where.world == 1:
        os.environ.setdefault("LOCAL_RANK", "0")  # torchtitan asks for it
        place.check(where, ranks=config.parallel.ranks)
        join(config, store=HashStore(), rank=0, world=1)
        return
    store, rank, world = meet(config)
    join(config, store=PrefixStore("replica-0", store), rank=rank, world=world)


def join(config: Config, *, store: Store, rank: int, world: int) -> None:
    """Makes the replica's world, torch's default process group, of ranks with a device each.

    Raises:
        TrainerError: there is no device for this rank.
    """
    take(config.site.device)
    backend = "gloo" if config.site.device == "cpu" else "cuda:nccl,cpu:gloo"
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=world, timeout=timedelta(seconds=TIMEOUT_S)
    )


def meet(config: Config) -> tuple[Store, int, int]:
    """The store where all ranks that the environment names meet, this one's rank, their number.

    Raises:
        TrainerError: as `init_ranks`.
    """
    where = place.found(os.environ)
    place.check(where, ranks=config.parallel.ranks)
    os.environ.update(where.variables())
    os.environ.setdefault("LOCAL_RANK", "0")
    if config.site.interface:
        os.environ["GLOO_SOCKET_IFNAME"] = interfaces.named(config.site.interface)
        os.environ["NCCL_SOCKET_IFNAME"] = config.site.interface
    elif where.num_nodes > 1 and (name := interfaces.towards(where.address)):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
    try:
        store, rank, world = next(rendezvous("env://", timeout=timedelta(seconds=TIMEOUT_S)))
        return store, rank, world
    except (ValueError, RuntimeError) as fault:
        names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        given = " ".join(f"{name}={os.environ.get(name, '(not set)')}" for name in names)
        raise TrainerError(
            f"cannot join the ranks of this replica with {given}: {fault}; start all ranks "
            "together (pww.train does, torchrun and srun can), each with its own RANK"
        ) from fault


@contextmanager
def together(of: str = "replica") -> Iterator[None]:
    """Around a collective or a look at the store: says in words that another rank is gone."""
    try:
        yield
    except RuntimeError as fault:
        raise TrainerError(
            f"another rank of this {of} is gone; its own last lines say why ({fault})"
        ) from fault


def nothing() -> None:
    """What there mostly is to do meanwhile."""


class Ranks:
    """Rank and world size, the agreed stop, `share`. Build it after the process group exists.

    `asked` is set once this rank knows of a wish to stop; what waits on rank 0 may watch it.
    """

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        self._group = dist.new_group(backend="gloo") if self.world > 1 else None
        self.asked = threading.Event()

    def beside(self) -> "Ranks":
        """Collective: the same ranks with a group of their own, for one thread beside this one."""
        other = copy(self)
        other._group = dist.new_group(backend="gloo") if self.world > 1 else None
        return other

    def store(self) -> Store:
        """A connection of its own to where the ranks met; for one thread."""
        own: Store = _get_default_store().clone()  # type: ignore[attr-defined]
        return own

    @property
    def group(self) -> dist.ProcessGroup | None:
        """The group for objects and CPU tensors; None for a single rank."""
        return self._group

    def ask_to_stop(self) -> None:
        """Only sets a flag; ranks agree on it at the next step or tick."""
        self.asked.set()

    def handle_signals(self) -> None:
        """SIGINT, SIGTERM and a queue's SIGUSR2 ask for an orderly stop, from now on or before."""
        signals.listen(self.asked)

    def agreed(self) -> bool:
        """Collective: True everywhere as soon as one rank was asked to stop."""
        agreed = self._any(self.asked.is_set())
        if agreed:
            self.asked.set()
        return agreed  # not the flag: a signal may have set it here, after the ranks agreed

    def share(self, work: Callable[[], T], *, meanwhile: Callable[[], None] = nothing) -> T:
        """Runs `work` on rank 0 and returns its (small) result, or raises its error, on every rank.

        `meanwhile` is called on every rank once `work` has begun, and every `TICK_S` until it is
        over; it may be collective, and raises nothing.

        A fault that is not a `PwwError` is a bug: rank 0 raises it as it is, the others name it.

        Raises:
            Stopped: a stop was agreed while waiting; `work` is abandoned in its daemon thread. Once
                a stop is agreed, work that takes longer than a moment is not waited for.
        """
        results: queue.SimpleQueue[_Outcome[T]] = queue.SimpleQueue()
        if self.rank == 0:

            def target() -> None:
                try:
                    results.put((work(), None))
                except BaseException as fault:
                    results.put((None, fault))

            threading.Thread(target=target, daemon=True, name="share").start()
        while True:
            meanwhile()
            outcome = self._poll(results) if self.rank == 0 else None
            outcome = self._broadcast(outcome)
            if outcome is not None:
                return _concluded(outcome)
            if self.agreed():
                raise Stopped("stopped while waiting; nothing durable was lost")

    def local(self, work: Callable[[], T]) -> T:
        """As `share`, for work without the network: never abandoned, whoever asks to stop."""
        outcome: _Outcome[T] | None = None
        if self.rank == 0:
            try:
                outcome = (work(), None)
            except BaseException as fault:
                outcome = (None, fault)
        outcome = self._broadcast(outcome)
        assert outcome is not None
        return _concluded(outcome)

    def gather(self, value: T) -> list[T]:
        """Collective: every rank's (small) value in rank order on rank 0, [] elsewhere."""
        if self._group is None:
            return [value]
        values: list[T] | None = [value] * self.world if self.rank == 0 else None
        with together():
            dist.gather_object(value, values, dst=0, group=self._group)
        return values or []

    def agree_on_fault(self, fault: PwwError | None) -> None:
        """Collective: raises on every rank the first rank's fault, if any rank has one."""
        faults: list[PwwError | None] = [fault]
        if self._group is not None:
            if not self._any(fault is not None):
                return
            faults = [None] * self.world
            with together():
                dist.all_gather_object(faults, fault, group=self._group)
        for one in faults:
            if one is not None:
                raise one

    def close(self) -> None:
        """Ends the process groups, with the other ranks if they come. Safe to call twice.

        Drop everything sharded before. Gloo's threads may abort an interpreter that exits while a
        mesh or a tensor still holds a group: hence the barrier before, and the collection after.
        """
        if not dist.is_initialized():
            return
        if self._group is not None:
            self._wait_for_the_others()
        self._group = None
        dist.destroy_process_group()
        gc.collect()

    def _wait_for_the_others(self) -> None:
        """A barrier that can be given up, which gloo's cannot: this rank may be alone with a
        fault.
        """
        store = _get_default_store()
        try:
            if store.add("pww/closing", 1) == self.world:
                store.set("pww/closed", "")
            store.wait(["pww/closed"], timedelta(seconds=CLOSE_S))
        except RuntimeError as fault:
            log.warning("the other ranks of this replica have not ended: %s", fault)

    def most(self, mine: int) -> int:
        """Collective: the highest value of any rank."""
        if self._group is None:
            return mine
        value = torch.tensor([mine])
        with together():
            dist.all_reduce(value, op=dist.ReduceOp.MAX, group=self._group)
        return int(value.item())

    def _any(self, mine: bool) -> bool:
        """Collective: whether it is true on some rank."""
        return bool(self.most(int(mine)))

    def _broadcast(self, outcome: "_Outcome[T] | None") -> "_Outcome[T] | None":
        """Collective: rank 0's outcome on every rank; rank 0 keeps its own object."""
        if self._group is None:
            return outcome
        sent = outcome
        if outcome is not None and not isinstance(outcome[1], PwwError | None):
            sent = None, TrainerError(f"rank 0 failed: {type(outcome[1]).__name__}: {outcome[1]}")
        box = [sent]
        with together():
            try:
                dist.broadcast_object_list(box, src=0, group=self._group)
            except Exception as fault:
                if self.rank != 0 or sent is None:
                    raise
                # A value that cannot travel fails before anything is sent: the others still wait.
                box = [(None, TrainerError(f"rank 0 could not share its result: {fault}"))]
                dist.broadcast_object_list(box, src=0, group=self._group)
                return box[0]
        return outcome if self.rank == 0 else box[0]

    def _poll(self, results: "queue.SimpleQueue[_Outcome[T]]") -> "_Outcome[T] | None":
        """The outcome as soon as there is one; None after a tick, or at once when asked to stop."""
        left = TICK_S
        while left > 0:
            try:
                return results.get(timeout=0.1)
            except queue.Empty:
                left -= 0.1
                if self.asked.is_set():
                    return None
        return None


_Outcome = tuple[T | None, BaseException | None]


def _concluded(outcome: _Outcome[T]) -> T:
    """The value, or the error raised."""
    value, fault = outcome
    if fault is not None:
        raise fault
    return value  # type: ignore[return-value]
