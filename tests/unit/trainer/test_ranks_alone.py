"""Ranks with a single rank: sharing, stopping, faults, and joining the process group."""

import os
import signal
import socket
import threading
from collections.abc import Iterator

import pytest
import torch.distributed as dist
from tiny import tiny_config

from pww.errors import PayloadError, Refused, Stopped, TrainerError
from pww.trainer import interfaces
from pww.trainer.ranks import Ranks, init_ranks, meet


def test_share_returns_the_value_and_runs_beside_the_main_thread(ranks: Ranks) -> None:
    assert ranks.share(lambda: {"a": 1}) == {"a": 1}
    assert ranks.share(lambda: None) is None
    assert ranks.share(threading.current_thread).name == "share"


def test_share_raises_what_the_work_raised(ranks: Ranks) -> None:
    fault = Refused("no", code="closed")

    def refuse() -> None:
        raise fault

    def break_down() -> None:
        raise KeyError("bug")

    with pytest.raises(Refused) as caught:
        ranks.share(refuse)
    assert caught.value is fault
    with pytest.raises(KeyError, match=r"bug"):
        ranks.share(break_down)


def test_a_stop_abandons_work_that_waits(ranks: Ranks) -> None:
    forever = threading.Event()
    with pytest.raises(Stopped, match=r"stopped while waiting"):
        ranks.share(lambda: ranks.ask_to_stop() or forever.wait(60))
    assert ranks.agreed()
    forever.set()


def test_work_that_is_done_is_not_lost_to_a_stop(ranks: Ranks) -> None:
    ranks.ask_to_stop()
    assert ranks.share(lambda: 5) == 5


def test_signals_ask_for_a_stop(ranks: Ranks) -> None:
    old = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        ranks.handle_signals()
        assert not ranks.agreed()
        signal.raise_signal(signal.SIGTERM)
        assert ranks.agreed()
        ranks.asked.clear()
        signal.raise_signal(signal.SIGINT)
        assert ranks.agreed()
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def test_gather_and_faults(ranks: Ranks) -> None:
    assert ranks.gather([1, 2]) == [[1, 2]]
    ranks.agree_on_fault(None)
    with pytest.raises(PayloadError, match=r"torn"):
        ranks.agree_on_fault(PayloadError("torn"))


def test_a_replica_alone_needs_no_port(ranks: Ranks) -> None:
    assert (ranks.rank, ranks.world, ranks.group) == (0, 1, None)
    assert "MASTER_PORT" not in os.environ


def test_ranks_that_torchrun_names_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "")
    init_ranks(tiny_config({"site.interface": "l"}))
    ranks = Ranks()
    assert (ranks.rank, ranks.world) == (0, 1)
    assert os.environ["GLOO_SOCKET_IFNAME"].startswith("l")
    assert os.environ["NCCL_SOCKET_IFNAME"] == "l"
    ranks.close()
    assert not dist.is_initialized()


@pytest.fixture
def counted() -> Iterator[None]:
    """A group that could not be joined leaves torch counting: the next one has another name than
    the meshes that torch keeps from earlier tests."""
    yield
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.destroy_process_group()


@pytest.mark.usefixtures("counted")
def test_variables_that_do_not_fit_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(TrainerError) as fault:
        init_ranks(tiny_config())
    assert "RANK=0 WORLD_SIZE=(not set) MASTER_ADDR=(not set)" in str(fault.value)
    assert "start all ranks together" in str(fault.value)


def test_an_interface_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(TrainerError, match=r"site\.interface=hsn: no network interface .* lo"):
        init_ranks(tiny_config({"site.interface": "hsn"}))


@pytest.mark.parametrize(
    ("on_each", "way", "before", "after"),
    [
        (1, "ib0", "", "ib0"),
        (1, "ib0", "hsn0", "hsn0"),  # who sets it knows better
        (1, "", "", ""),  # no way but loopback: gloo's own choice
        (2, "ib0", "", ""),  # one node: nothing has to leave it
    ],
)
def test_ranks_of_several_nodes_talk_over_the_way_to_the_first(
    on_each: int, way: str, before: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gloo takes what the host's own name means, which often is loopback."""
    monkeypatch.setattr(interfaces, "towards", {"node-1": way}.__getitem__)
    told = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": on_each, "MASTER_ADDR": "node-1"}
    for name, value in {**told, "GLOO_SOCKET_IFNAME": before}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("MASTER_PORT", raising=False)
    if not before:
        monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    with pytest.raises(TrainerError, match=r"MASTER_PORT=\(not set\)"):
        meet(tiny_config({"parallel.ranks": 2, "parallel.kind": "ddp"}))
    assert os.environ.get("GLOO_SOCKET_IFNAME", "") == after
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
