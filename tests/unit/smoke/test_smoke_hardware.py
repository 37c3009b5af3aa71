"""Devices and cores of ranks: what is said of machines that are not here."""

from dataclasses import replace

import pytest

from pww.config.load import compose
from pww.config.schema import Site
from pww.smoke.book import Check
from pww.smoke.hardware import Seat, cores, devices, seat, seats

LOCAL = compose([]).site
CUDA = LOCAL.model_copy(update={"device": "cuda"})
LUMI = compose(["site=lumi", "site.queue.account=project_1"]).site
LUMI_CORES = [range(start, start + 7) for start in (49, 57, 17, 25, 1, 9, 33, 41)]
"""Which cores are next to each GCD, as the site's own documents have it."""


def at(rank: int, *, host: str = "n1", device: str = "", of: "range | list[int]" = ()) -> Seat:
    return Seat(rank, rank % 8, host, device or f"H100 uuid-{rank % 4} 0:{rank % 4}", tuple(of))


def the(checks: "list[Check]") -> tuple[str, str]:
    (one,) = checks
    return one.state, one.told


def test_a_device_each() -> None:
    told = [at(rank, host=f"n{rank // 4}") for rank in range(8)]
    assert the(list(devices(CUDA, told))) == (
        "right", "8 rank(s) on 2 node(s), each with a device of its own: 8 x H100"
    )  # fmt: skip


def test_two_on_one_device() -> None:
    told = [replace(at(rank), device="H100 uuid-0 0:0") for rank in range(4)]
    state, text = the(list(devices(CUDA, told)))
    assert state == "wrong"
    assert text.startswith("ranks 0 and 1 are both on H100 uuid-0 0:0 of n1; ranks 0 and 2 ")
    assert text.endswith("; one device a rank")


def test_a_cpu_has_none_and_that_is_said() -> None:
    state, text = the(list(devices(LOCAL, [at(0), at(1)])))
    assert state == "unchecked"
    assert text == "2 rank(s) on 1 node(s), which compute on CPUs: there is none"


@pytest.mark.parametrize(
    ("told", "state", "words"),
    [
        ([range(2), range(2, 4)], "right", "no two ranks of a node may run on the same core"),
        ([range(4), range(4)], "unchecked", "all 2 ranks of n1 may run on any of its 4 core(s)"),
        ([range(3), range(2, 4)], "wrong", "core 2 of n1 is of rank 0 and of rank 1; bind each"),
        ([range(2)], "unchecked", "there is no second rank on a node"),
    ],
)
def test_cores_without_masks(told: list[range], state: str, words: str) -> None:
    found = the(list(cores(LOCAL, [at(rank, of=one) for rank, one in enumerate(told)])))
    assert found[0] == state
    assert words in found[1]


def test_many_clashes_are_counted() -> None:
    told = [at(rank, host=f"n{rank // 2}", of=[0, rank % 2 + 1]) for rank in range(10)]
    state, text = the(list(cores(LOCAL, told)))
    assert state == "wrong"
    assert "; 2 more like it; bind" in text


def masked(site: Site, order: list[range]) -> tuple[str, str]:
    return the(list(cores(site, [at(rank, of=one) for rank, one in enumerate(order)])))


def test_the_masks_of_a_full_node() -> None:
    assert masked(LUMI, LUMI_CORES)[0] == "right"
    state, text = masked(LUMI, sorted(LUMI_CORES, key=lambda cores: cores[0]))
    assert state == "wrong"  # distinct, but each next to another rank's GCD
    assert text.startswith(
        "rank 0 may run on cores 1-7, and its mask 0xfe000000000000 (site.cpu_masks) names 49-55; "
    )
    assert masked(LUMI, [range(64)] * 8)[0] == "wrong"


def test_a_part_of_a_node_has_no_masks() -> None:
    words = ["site=lumi", "site.queue.account=project_1", "site.queue.partition=small-g"]
    part = compose([*words, "site.queue.exclusive=false", "site.ranks_per_node=2"]).site
    assert masked(part, [range(1, 8), range(9, 16)])[0] == "right"


def test_a_seat_travels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    (found,) = seats([seat(compose([]), rank=11)])
    assert (found.rank, found.local, found.device) == (11, 3, "")
    assert len(found.cores) >= 1
