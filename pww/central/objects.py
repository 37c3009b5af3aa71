"""The central's end of an object store or a shared folder, which is far away and may stall.

Nothing here waits for it: what a site brought is fetched by a thread of its own (`NotYet` until it
is here), what sites fetch is put there by another, as is what is removed. So leases, other sites
and `/health` go on while it is slow or gone.

Nobody else removes what nobody needs any more: deltas of sites that died between their upload and
its offer, thetas of a central that died between two rounds. `sweep` does, when an object that
nothing refers to stayed as it is for `LEFT_S` by our own clock, so that no clocks are compared and
an upload that grows is left alone. Should one be wanted after all, its site finds it gone and
brings it again.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pww.central.errands import Errands
from pww.clock import Clock
from pww.errors import CentralError, NotYet, PayloadError, Stopped
from pww.transport.fsspec_carrier import FsspecCarrier
from pww.wire import PayloadInfo

log = logging.getLogger(__name__)
AGAIN_S = 5.0
LEFT_S = 6 * 3600.0
"""An object that nothing refers to is left there for so long."""
CLOSE_S = 10.0
"""What is still to be put or removed at the end is waited for no longer."""


@dataclass(slots=True)
class _Fetch:
    """An object on its way to us, or here."""

    over: bool = False
    wanted: bool = True
    here: bool = False
    fault: Exception | None = None
    asked_s: float = 0.0


class Objects:
    """`Carried` and `Shelf` over an fsspec URL; `folder` holds what was brought here.

    Thread-safe; its threads are daemons and end with `stop`.
    """

    def __init__(
        self, carrier: FsspecCarrier, folder: Path, *, clock: Clock, stop: threading.Event
    ) -> None:
        self._carrier, self._folder, self._clock, self._stop = carrier, folder, clock, stop
        self._lock = threading.Lock()
        self._published: dict[str, tuple[PayloadInfo, Path]] = {}
        self._out: set[str] = set()  # of these, what is there
        self._fetches: dict[str, _Fetch] = {}
        self._seen: dict[str, tuple[str, float]] = {}  # leftovers: how they look, and since when
        self._errands = Errands("the object store")
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.iterdir():
            left.unlink()
        self.sweep()

    @property
    def retries(self) -> int:
        """Requests so far that were repeats."""
        return self._carrier.transfers().retries

    # ----------------------------------------------------------------------- what sites brought

    def take(self, info: PayloadInfo) -> Path | None:
        """An object that was brought here; None if it cannot be had, and the log says why.

        Raises:
            NotYet: it is on its way; ask again.
            OSError: there is no room for it here.
        """
        with self._lock:
            fetch = self._fetches.get(info.digest)
            if fetch is None:
                fetch = self._fetches[info.digest] = _Fetch()
                self._apart(partial(self._fetch, info, fetch), f"fetch-{info.digest[:8]}")
            fetch.wanted, fetch.asked_s = True, self._clock.monotonic()
            if not fetch.over:
                raise NotYet(f"payload {info.digest[:16]}… is being fetched")
            if fetch.here:
                return self._folder / info.digest
            del self._fetches[info.digest]  # whoever asks again has it fetched again
        if isinstance(fetch.fault, PayloadError):
            self.discard(info)  # a site does not put again what is there with the right size
        elif fetch.fault is not None and not isinstance(fetch.fault, CentralError | Stopped):
            raise fetch.fault
        return None

    def _fetch(self, info: PayloadInfo, fetch: _Fetch) -> None:
        path = self._folder / info.digest
        try:
            self._carrier.get(info, path)
        except CentralError as why:
            log.error("a payload cannot be fetched: %s", why)
            fetch.fault = why
        except PayloadError as why:
            log.error("a payload cannot be used: %s", why)
            fetch.fault = why
        except Exception as why:  # raised by whoever takes it
            fetch.fault = why
        with self._lock:
            fetch.here, fetch.over = fetch.fault is None, True
            if not fetch.wanted:
                self._forget(info.digest)

    def _apart(self, call: Callable[[], None], name: str) -> None:
        threading.Thread(target=call, daemon=True, name=name).start()

    def discard(self, info: PayloadInfo) -> None:
        """Removes it here, and there if it is not what we publish: theta(0) is what a site put."""
        with self._lock:
            fetch = self._fetches.get(info.digest)
            if fetch is not None and not fetch.over:
                fetch.wanted = False
            else:
                self._forget(info.digest)
        self._errands.give(partial(self._remove, info.digest))

    def _forget(self, digest: str) -> None:
        self._fetches.pop(digest, None)
        (self._folder / digest).unlink(missing_ok=True)

    # ------------------------------------------------------------------------ what sites fetch

    def publish(self, info: PayloadInfo, path: Path) -> None:
        """Has a file put there, however often that must be tried; `has` says when it is."""
        with self._lock:
            self._published[info.digest] = (info, path)
        self._errands.give(partial(self._put, info.digest))

    def has(self, info: PayloadInfo) -> bool:
        """Whether it is there by now."""
        with self._lock:
            return info.digest in self._out

    def withdraw(self, info: PayloadInfo) -> None:
        """Has it removed there; if that fails it stays for now, and the log says so."""
        with self._lock:
            self._published.pop(info.digest, None)
            self._out.discard(info.digest)
        self._errands.give(partial(self._remove, info.digest))

    def _put(self, digest: str) -> None:
        """Until it is there, is withdrawn, or a stop was asked for."""
        while (published := self._published.get(digest)) is not None:
            info, path = published
            try:
                self._carrier.put(path, info)
            except Stopped:
                return
            except (CentralError, PayloadError, OSError) as why:
                if digest in self._published:  # else its file may be gone, rightly
                    log.error("a file for the sites cannot be put there: %s", why)
                if self._clock.wait(self._stop, AGAIN_S):
                    return
                continue
            with self._lock:
                if digest in self._published:
                    self._out.add(digest)
            return

    def _remove(self, digest: str) -> None:
        if digest in self._published:
            return
        try:
            self._carrier.remove(digest)
        except CentralError as why:
            log.warning("an object that is not needed any more stays: %s", why)
        except Stopped:
            return

    # ------------------------------------------------------------------------------- the rest

    def sweep(self) -> None:
        """Puts there again what somebody removed, and removes what nobody needs."""
        for digest in tuple(self._published):
            self._errands.give(partial(self._put, digest))
        self._errands.give(self._collect)

    def _collect(self) -> None:
        """Removes what nothing refers to and what has not changed for `LEFT_S`."""
        try:
            there = self._carrier.contents()
        except (CentralError, Stopped) as why:
            log.warning("what is in the object store cannot be listed: %s", why)
            return
        now_s = self._clock.monotonic()
        with self._lock:
            for digest, fetch in tuple(self._fetches.items()):
                if fetch.over and now_s - fetch.asked_s >= LEFT_S:
                    self._forget(digest)  # its replica has gone
            needed = self._published.keys() | self._fetches.keys()
        seen, self._seen = self._seen, {}
        for name, looks in there.items():
            digest = name.partition(".")[0]
            if digest in needed:
                continue
            before, since_s = seen.get(name, ("", now_s))
            if before != looks:
                since_s = now_s
            if now_s - since_s < LEFT_S:
                self._seen[name] = (looks, since_s)
                continue
            log.info("%s… is left over from an earlier process or a lost site: removed", name[:16])
            try:
                self._carrier.remove(name)
            except (CentralError, Stopped) as why:
                log.warning("an object that nobody needs stays: %s", why)

    def wait(self, timeout_s: float) -> bool:
        """Whether all that is to be put or removed is done, after so many seconds at most."""
        return self._errands.wait(timeout_s)

    def close(self) -> None:
        """Ends the errands; what could not be put or removed in time stays as it is."""
        timeout_s = 0.0 if self._stop.is_set() else CLOSE_S
        if not self._errands.close(timeout_s) and timeout_s:
            log.warning("the object store is slow: some objects that nobody needs stay there")
