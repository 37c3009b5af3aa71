"""What a network does to a transfer over TLS, as with a central that has keys.

Other code moves the bytes: there is no sendfile and no wait for many bytes at once, and what breaks
may break in the middle of a TLS record.
"""

import ssl
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))

from bad_http import BadPipe
from blob_desk import PIECE, QUICK, Desk, carrier, made, moves
from gatehouse import Gatehouse

from pww.central import credentials
from pww.clock import SystemClock
from pww.transport.blob import BlobCarrier
from pww.transport.carrier import Tuning

ONE = replace(QUICK, min_streams=1, max_streams=1)
SHAKEN = 16 << 10
"""More than a TLS handshake has: the reset comes in the first piece."""
MIDDLE = 5 * PIECE + 4321
AFTER = (0, 1, SHAKEN, MIDDLE)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Gatehouse:
    return Gatehouse.build(tmp_path_factory.mktemp("house"), SystemClock())


@pytest.fixture(scope="module")
def desk(house: Gatehouse, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    folder = tmp_path_factory.mktemp("store")
    opened = Desk.open(folder, tls=credentials.server_tls(house.folder))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def tls(house: Gatehouse) -> ssl.SSLContext:
    return house.bundle("lumi/a").tls


def secure(pipe: BadPipe, tls: ssl.SSLContext, tuning: Tuning) -> BlobCarrier:
    return carrier(pipe.url.replace("http://", "https://"), tuning=tuning, tls=tls)


UP = pytest.mark.parametrize("up", [True, False], ids=["up", "down"])


@UP
@pytest.mark.parametrize("after", AFTER)
def test_reset(desk: Desk, tls: ssl.SSLContext, tmp_path: Path, up: bool, after: int) -> None:
    """In the handshake, or within a record: only what was under way travels again."""
    path, info = made(tmp_path, 200 + 10 * up + AFTER.index(after))
    with BadPipe(desk.server.port, up=up, after_bytes=after) as pipe:
        client = secure(pipe, tls, ONE)
        moves(client, desk, path, info, up=up)
        assert pipe.reset
    moved = client.transfers()
    assert moved.retries == 1
    assert moved.bytes_up + moved.bytes_down == info.size_bytes, "each piece once"


@UP
def test_stall(desk: Desk, tls: ssl.SSLContext, tmp_path: Path, up: bool) -> None:
    """Silence within a record is silence: the timeout ends it."""
    path, info = made(tmp_path, 220 + up)
    with BadPipe(desk.server.port, up=up, after_bytes=MIDDLE, stalls=True) as pipe:
        client = secure(pipe, tls, replace(ONE, timeout_s=1.0))
        moves(client, desk, path, info, up=up)
        assert pipe.stalled
    assert client.transfers().retries >= 1
    assert client.transfers().bytes_up + client.transfers().bytes_down == info.size_bytes


@UP
def test_last_piece_is_not_waited_for_for_long(
    desk: Desk, tls: ssl.SSLContext, tmp_path: Path, up: bool
) -> None:
    """The connection that rests is interrupted by another thread while its own reads or sends."""
    path, info = made(tmp_path, 230 + up)
    with BadPipe(desk.server.port, up=up, after_bytes=MIDDLE, stalls=True) as pipe:
        client = secure(pipe, tls, replace(QUICK, timeout_s=600.0))
        moves(client, desk, path, info, up=up)
        assert pipe.stalled, "and nobody waited ten minutes"
    assert client.transfers().retries >= 1
    assert client.transfers().bytes_up + client.transfers().bytes_down == info.size_bytes
