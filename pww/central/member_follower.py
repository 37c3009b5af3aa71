"""The aggregator's end of the members' feed: a thread that obeys joins and leaves as they come.

Beside the server loop, because a site must be admitted while a merge of gigabytes runs.
"""

import logging
import threading

from pww.central.books_wire import Follow, News
from pww.central.membership import Announcer, Member, Members
from pww.central.remote_books import NEWS, RemoteBooks
from pww.clock import Clock
from pww.errors import PwwError
from pww.transport.retry import TryAgain

log = logging.getLogger(__name__)
PAUSE_S = 0.2
"""Between two tries while the coordinator is away, of which the loop's own calls tell."""


class MemberFollower:
    """Tells `members` what the coordinator knows, from `start` to `close`."""

    def __init__(self, books: RemoteBooks, members: Members, *, clock: Clock) -> None:
        self._books, self._announcer, self._clock = books, Announcer(members), clock
        self._ended = threading.Event()
        self._line = books.line(self._ended, stop_s=0.0)
        self._life, self._seen = "", 0
        self._known: dict[str, tuple[Member, bool]] = {}
        self._thread = threading.Thread(target=self._follow, daemon=True, name="members")

    def start(self) -> None:
        """Returns when those who are members now are known; the others follow.

        Raises:
            PwwError: as every call of the books.
        """
        self._obey(self._books.members())
        self._thread.start()

    def close(self) -> None:
        """Ends the thread."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(10.0)
        self._line.close()

    def _follow(self) -> None:
        while not self._ended.is_set():
            try:
                self._obey(self._line.once(Follow(life=self._life, seen=self._seen), NEWS))
                continue
            except TryAgain as why:
                log.debug("members: %s", why)
            except PwwError as why:  # the loop's next call says it and ends
                log.debug("members: %s", why)
            except Exception:
                log.exception("a join or leave could not be obeyed; trying again")
            self._clock.wait(self._ended, PAUSE_S)

    def _obey(self, news: News) -> None:
        """Hands news on; a restarted coordinator's are news only where something is different."""
        again = news.life != self._life and self._life != ""
        for note in news.notes:
            member = Member(note.replica, note.incarnation, note.node_key)
            if again and self._known.get(note.replica) == (member, note.joined):
                continue
            self._announcer.add(member, joined=note.joined)
            self._announcer.deliver()
            self._known[note.replica] = (member, note.joined)
        self._life, self._seen = news.life, news.seq
