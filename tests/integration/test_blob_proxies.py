"""The blob store behind an HTTP forward proxy, which a site's nodes may need to get out."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))

from bad_http import BadHttp
from blob_desk import QUICK, Desk, carrier, info_of, made
from net_faults import Nth, cut_off

from pww.errors import Unreachable

IMPATIENT = replace(QUICK, deadline_s=0.3)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    opened = Desk.open(tmp_path_factory.mktemp("store"))
    yield opened
    opened.close()


@pytest.fixture
def central_name(monkeypatch: pytest.MonkeyPatch) -> str:
    """A host that only the proxy can find."""
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return "central.invalid"


def both_ways(client, desk: Desk, folder: Path, seed: int) -> None:  # type: ignore[no-untyped-def]
    path, info = made(folder, seed)
    client.put(path, info)
    client.get(info, folder / "back")
    assert (folder / "back").read_bytes() == path.read_bytes()
    assert desk.store.path(info.digest) is not None


def test_forward_proxy(desk: Desk, tmp_path: Path, central_name: str, monkeypatch) -> None:
    with BadHttp(desk.server.port, password="bmFtZTp3b3Jk") as proxy:
        address = f"127.0.0.1:{proxy.port}"
        monkeypatch.setenv("HTTP_PROXY", f"http://name:word@{address}")
        both_ways(carrier(f"http://{central_name}"), desk, tmp_path, 150)
        assert {r.target.partition("/v1")[0] for r in proxy.requests} == {"http://central.invalid"}
        monkeypatch.setenv("NO_PROXY", "127.0.0.2")
        direct = carrier(f"http://127.0.0.2:{desk.server.port}", tuning=IMPATIENT)
        with pytest.raises(Unreachable, match="Connection refused"):
            direct.get(info_of(b"x"), tmp_path / "none")


def test_forward_proxy_to_loopback_is_not_used(desk: Desk, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.invalid:1")
    both_ways(carrier(desk.url), desk, tmp_path, 151)


def test_faults_behind_a_forward_proxy(
    desk: Desk, tmp_path: Path, central_name: str, monkeypatch
) -> None:
    """A proxy that is itself the bad network."""
    with BadHttp(desk.server.port, Nth(f"GET http://{central_name}", cut_off)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        client = carrier(f"http://{central_name}")
        both_ways(client, desk, tmp_path, 152)
        assert client.transfers().retries == 1
