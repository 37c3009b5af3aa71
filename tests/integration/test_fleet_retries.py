"""Every request that a site's Flower node repeats is counted, also where flwr repeats it."""

import logging
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict
from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError

sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))

from pww.clock import SystemClock
from pww.config.schema import Transport
from pww.federation.fleet import FleetSite
from pww.federation.parts import Parts
from pww.federation.signing import Signer
from pww.federation.superlink import EmbeddedSuperLink
from pww.transport.serve import AsgiServer
from pww.transport.site_key import SiteKey

TRANSPORT = Transport(
    kind="inline", url="none", down="whole", limit_mb=8, timeout_s=10.0, poll_s=0.05,
    retry_first_s=0.01, retry_max_s=0.05,
)  # fmt: skip


class Losing:
    """Does what is asked and loses the first answer to each of these calls."""

    def __init__(self, app: Any, *calls: str) -> None:
        self.app, self.calls, self.seen = app, calls, Counter[str]()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        call = scope["path"].rsplit("/", 1)[1]
        self.seen[call] += 1
        if call not in self.calls or self.seen[call] > 1:
            await self.app(scope, receive, send)
            return

        async def drop(message: Any) -> None:
            pass

        await self.app(scope, receive, drop)
        await send({"type": "http.response.start", "status": 502, "headers": []})
        await send({"type": "http.response.body", "body": b""})


@dataclass(frozen=True)
class Person:
    replica: str
    incarnation: str
    node_key: str


@dataclass
class Place:
    link: EmbeddedSuperLink
    site: FleetSite
    app: Losing


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Place]:
    link = EmbeddedSuperLink(tmp_path / "link", limit_mb=8)
    app = Losing(link.app, *request.param)
    server = AsgiServer(host="127.0.0.1", port=0, key="central.port")
    server.start(app, name="losing")
    key = SiteKey.new(clock=SystemClock())
    with link.run():
        link.joined(Person("s/a", "1" * 32, key.public_pem))
        site = FleetSite(
            f"127.0.0.1:{server.port}", TRANSPORT, signer=Signer(key), clock=SystemClock(),
            stop=threading.Event(), random=np.random.default_rng(0),
        )  # fmt: skip
        yield Place(link, site, app)
        site.close()
    server.stop()
    link.close()


def round_trip(place: Place) -> None:
    """One instruction, and its reply."""
    assert place.site.receive() is None
    (node,) = place.link.nodes().values()
    content = RecordDict({"pww": ConfigRecord({"n": 5})})
    message = place.link.grid.create_message(content, "train", node.node_id, "0")
    place.link.grid.push_messages([message])
    got = place.site.receive()
    assert got is not None
    assert place.site.reply(got, RecordDict({"r": ConfigRecord({"n": 6})}))
    (reply,) = place.link.grid.pull_messages([got.metadata.message_id])
    assert reply.content["r"]["n"] == 6


@pytest.mark.parametrize("place", [()], indirect=True)
def test_nothing_is_counted_where_nothing_is_lost(place: Place) -> None:
    round_trip(place)
    assert place.site.num_retries == 0


@pytest.mark.parametrize("place", [("push-object",)], indirect=True)
def test_a_second_upload_counts(place: Place) -> None:
    """A repeat of the lost call, which the central does not want; then what is missing is asked."""
    round_trip(place)
    assert place.app.seen["push-messages"] == 2
    assert place.site.num_retries == 2


@pytest.mark.parametrize("place", [()], indirect=True)
def test_an_object_that_is_asked_for_again_counts(place: Place) -> None:
    left = {"a": 2, "b": 0}

    def pull(name: str) -> bytes:
        left[name] -= 1
        if left[name] >= 0:
            raise ObjectUnavailableError(name)
        return name.encode()

    parts = Parts("receiving", total=2, clock=SystemClock())
    counted = place.site._counted(pull, parts)
    for name, tries in (("a", 3), ("b", 1)):
        for _ in range(tries - 1):
            with pytest.raises(ObjectUnavailableError):
                counted(name)
        assert counted(name) == name.encode()
    assert place.site.num_retries == 2


@pytest.mark.parametrize("place", [()], indirect=True)
def test_both_ways_tell_how_far_they_are(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if each part took long: to speak is due at once, and always."""
    monkeypatch.setattr("pww.federation.parts.SPEAK_AFTER_S", 0.0)
    monkeypatch.setattr("pww.federation.parts.SPEAK_EVERY_S", 0.0)
    with caplog.at_level(logging.INFO, "pww.federation.parts"):
        round_trip(place)
    said = [record.getMessage() for record in caplog.records]
    for what in ("receiving an instruction", "sending an answer"):
        told = [line.split(",")[0] for line in said if line.startswith(what)]
        assert told == [f"{what}: part {n} of 3" for n in (1, 2, 3)]
