"""The lease client with a bundle: against a door behind real TLS, and against strangers."""

import sys
import threading
from collections.abc import Iterator
from email.utils import format_datetime
from pathlib import Path

import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

sys.path.insert(0, str(Path(__file__).parents[2] / "programs"))

from gatehouse import Gatehouse

from pww.central import credentials
from pww.central.door import TOKEN_S, Door
from pww.clock import ManualClock, SystemClock
from pww.config.schema import Transport
from pww.errors import CentralError, Refused, Stopped, Unreachable
from pww.replica.coordinator_client import HttpCoordinator
from pww.transport.serve import AsgiServer
from pww.transport.site_key import Open
from pww.wire import Acquire, Acquired, Exhausted, Leave, Refusal

LIFE = "1" * 32
TRANSPORT = Transport(
    kind="inline",
    url="none",
    down="whole",
    limit_mb=64,
    timeout_s=5.0,
    poll_s=0.1,
    retry_first_s=0.01,
    retry_max_s=0.05,
)
ACQUIRE = Acquire(replica="lumi/a", incarnation=LIFE, key="0" * 32, num_blocks=1, ttl_s=60.0)
EXHAUSTED = Acquired(answer=Exhausted(committed=3), round=2)


class Central:
    """As little HTTP as there can be around a door; `clock` is the central's."""

    def __init__(self, house: Gatehouse, clock: ManualClock) -> None:
        self.house, self.clock = house, clock
        self.door: Door = Door.of(house.folder, state=house.state, clock=clock)
        self.seen: list[tuple[str, int]] = []
        self.server = AsgiServer(
            host="127.0.0.1", port=0, key="central.port", tls=credentials.server_tls(house.folder)
        )
        app = Starlette(routes=[Route("/v1/{name}", self._answer, methods=["POST"])])
        self.server.start(app, name="door")
        uvicorn = self.server._server  # its Date header would be this machine's
        uvicorn.config.date_header = False
        uvicorn.server_state.default_headers = []
        self.url = f"https://localhost:{self.server.port}"

    async def _answer(self, request: Request) -> Response:
        body, name = await request.body(), request.path_params["name"]
        try:
            if name == "open":
                reply = self.door.open(Open.model_validate_json(body), peer="p")
            else:
                header = request.headers.get("authorization", "")
                who = self.door.check(header, request.url.path, peer="p")
                kind = Leave if name == "leave" else Acquire
                self.door.match(who, kind.model_validate_json(body), peer="p")
                reply = EXHAUSTED
            status, text = 200, reply.model_dump_json()
        except Refused as why:
            status = 429 if why.code == "too_many" else 401
            text = Refusal(
                code=why.code, message=str(why), retry_after_s=min(why.retry_after_s, 0.01)
            ).model_dump_json()
        self.seen.append((name, status))
        import datetime

        when = datetime.datetime.fromtimestamp(int(self.clock.wall()), tz=datetime.UTC)
        headers = {"date": format_datetime(when, usegmt=True)}
        return Response(text, status, headers, media_type="application/json")


@pytest.fixture
def site_clock() -> ManualClock:
    return ManualClock(1000.0)


@pytest.fixture
def central(tmp_path: Path, site_clock: ManualClock) -> Iterator[Central]:
    built = Central(Gatehouse.build(tmp_path, site_clock), ManualClock(1000.0))
    yield built
    built.server.stop()


@pytest.fixture
def connect(central: Central, site_clock: ManualClock):
    made = []

    def start(replica: str = "lumi/a", *, url: str = "", house: Gatehouse | None = None):
        bundle = (house or central.house).bundle(replica)
        made.append(
            HttpCoordinator(
                url or central.url, TRANSPORT, clock=site_clock, stop=threading.Event(),
                random=np.random.default_rng(0), deadline_s=1.0, bundle=bundle,
            )
        )  # fmt: skip
        return made[-1]

    yield start
    for one in made:
        one.close()


def test_the_first_call_opens_a_session_and_the_others_use_it(central: Central, connect) -> None:
    site = connect()
    for _ in range(3):
        assert site.acquire(ACQUIRE) == EXHAUSTED
    assert central.seen == [("open", 200)] + [("acquire", 200)] * 3
    assert site.num_retries == 0


def test_it_is_renewed_before_it_ends(central: Central, connect, site_clock) -> None:
    site = connect()
    site.acquire(ACQUIRE)
    for clock in (site_clock, central.clock):
        clock.advance(TOKEN_S * 0.8)
    site.acquire(ACQUIRE)
    assert [name for name, _ in central.seen] == ["open", "acquire", "open", "acquire"]
    assert {status for _, status in central.seen} == {200}


def test_a_token_that_is_not_taken_any_more_is_replaced_once(central: Central, connect) -> None:
    site = connect()
    site.acquire(ACQUIRE)
    central.clock.jump_wall(TOKEN_S + 1)  # an operator steps the central's clock
    central.seen.clear()
    assert site.acquire(ACQUIRE) == EXHAUSTED
    assert central.seen[0] == ("acquire", 401)
    assert central.seen[-2:] == [("open", 200), ("acquire", 200)]
    opened_again = sum(name == "open" for name, _ in central.seen) - 1
    assert site.num_retries == 1 + opened_again, "a repeat under a new session is one"
    (central.house.state / "session.secret").unlink()  # its state folder is lost
    central.door = Door.of(central.house.folder, state=central.house.state, clock=central.clock)
    assert site.acquire(ACQUIRE) == EXHAUSTED


@pytest.mark.parametrize("off_s", [-100000.0, -290.0, 290.0, 400.0, 100000.0])
def test_a_wrong_clock_here_is_corrected(central: Central, connect, site_clock, off_s) -> None:
    site_clock.jump_wall(off_s)
    site = connect()
    assert site.acquire(ACQUIRE) == EXHAUSTED
    assert site._bundle.key.theirs.offset_s == pytest.approx(-off_s, abs=2.0)
    # a central that has just started takes no opening from before its start
    assert len(central.seen) == (2 if -5 < off_s < 300 else 3)
    assert site.num_retries == len(central.seen) - 2


def test_a_revoked_key_ends_it_with_the_reason(central: Central, connect) -> None:
    site = connect()
    site.acquire(ACQUIRE)
    credentials.revoke(central.house.folder, replica="lumi/a")
    central.seen.clear()
    with pytest.raises(Refused, match="was revoked") as why:
        site.acquire(ACQUIRE)
    assert why.value.code == "unauthorised"
    assert central.seen == [("acquire", 401), ("open", 401)]


def test_another_replicas_key_is_refused(central: Central, connect) -> None:
    site = connect("lumi/b")
    with pytest.raises(Refused, match="is not the key of replica lumi/a at this central"):
        site.acquire(ACQUIRE)
    assert central.seen == [("open", 401)]


def test_who_is_asked_to_wait_waits(central: Central, connect) -> None:
    for _ in range(10):
        central.door._strangers.failed("p")
    site = connect()
    with pytest.raises(Unreachable, match="HTTP 429"):
        site.acquire(ACQUIRE)
    central.clock.advance(61.0)
    assert site.acquire(ACQUIRE) == EXHAUSTED


def test_another_central_is_no_reason_to_wait(central: Central, connect, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    site = connect(house=Gatehouse.build(other, SystemClock()))
    with pytest.raises(CentralError, match="not of the central that this bundle belongs to"):
        site.acquire(ACQUIRE)
    assert not isinstance(CentralError, Unreachable)
    named = connect(url=central.url.replace("localhost", "127.0.0.1"))
    assert named.acquire(ACQUIRE) == EXHAUSTED
    assert [name for name, _ in central.seen] == ["open", "acquire"]


def test_a_central_that_is_away_is_waited_for(central: Central, connect) -> None:
    site = connect()
    site.acquire(ACQUIRE)
    central.server.stop()
    with pytest.raises((Unreachable, Stopped)):
        site.acquire(ACQUIRE)


def test_a_goodbye_opens_a_session_if_it_must(central: Central, connect) -> None:
    site = connect()
    with pytest.raises(CentralError, match="no answer of a pww central"):  # it answers Acquired
        site.leave(Leave(replica="lumi/a", incarnation=LIFE))
    assert central.seen == [("open", 200), ("leave", 200)]


def test_plain_http_to_a_central_with_keys_is_told_what_it_wants(central: Central) -> None:
    client = HttpCoordinator(
        central.url.replace("https", "http"), TRANSPORT, clock=SystemClock(),
        stop=threading.Event(), random=np.random.default_rng(1), deadline_s=0.2,
    )  # fmt: skip
    with pytest.raises(Unreachable, match="a central with keys answers https only"):
        client.acquire(ACQUIRE)
    client.close()
