"""Which bandwidth is plausible at which site."""

import numpy as np
import pytest

from pww.config.load import compose
from pww.smoke import reduce
from pww.smoke.book import Check
from pww.smoke.reduce import judged

SNELLIUS = ["site=snellius"]
LUMI = ["site=lumi", "site.queue.account=project_1", "site.queue.partition=standard-g"]


def check(words: list[str], found: float, *, nodes: int = 1) -> Check:
    more = [f"site.num_nodes={nodes}", "optim.batch_windows=16"] if nodes > 1 else []
    config = compose([*words, "model=qwen3_0.6b", *more])
    return judged(config, found, num_mib=256, num_nodes=nodes)


@pytest.mark.parametrize(
    ("words", "nodes", "figure"),
    [(SNELLIUS, 1, 300.8), (SNELLIUS, 2, 133.1), (LUMI, 1, 123.0), (LUMI, 2, 88.0)],
)
def test_the_figures_measured_at_the_sites(words: list[str], nodes: int, figure: float) -> None:
    assert check(words, figure, nodes=nodes).state == "right"
    assert check(words, figure * 0.51, nodes=nodes).state == "right"
    slow = check(words, figure * 0.49, nodes=nodes)
    assert slow.state == check(words, figure * 2.1, nodes=nodes).state == "wrong"
    assert f"{figure:g} was measured at this site, and 0.5 to 2 times that is" in slow.told
    assert "TCP" not in slow.told


def test_single_digits_across_nodes_are_tcp() -> None:
    found = check(SNELLIUS, 4.2, nodes=2)
    assert found.state == "wrong"
    assert found.told.startswith("4.2 GB/s, an all-reduce of 256 MiB over 8 ranks; ")
    assert "the collective library fell back to TCP" in found.told
    assert found.figures == {"allreduce_gb_s": 4.2}
    assert "TCP" not in check(SNELLIUS, 4.2).told


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "site local has no figure"),
        (["site=snellius", "site.queue.partition=gpu_a100"], "site snellius has no figure"),
        (["site=snellius", "site.ranks_per_node=2"], "figure is for full nodes of its devices"),
        (["site.allreduce_node_gb_s=100"], "figure is for full nodes of its devices"),
        (["site=slurm", "site.queue.partition=x", "site.ranks_per_node=4"], "site slurm has no"),
    ],
)
def test_what_cannot_be_judged_is_only_shown(words: list[str], why: str) -> None:
    found = check(words, 1.0)
    assert found.state == "unchecked"
    assert why in found.told


def test_a_site_of_ones_own_has_its_own_figure() -> None:
    own = ["site=slurm", "site.queue.partition=x", "site.ranks_per_node=4"]
    assert check([*own, "site.allreduce_node_gb_s=100"], 10.0).state == "wrong"
    assert check([*own, "site.allreduce_node_gb_s=100"], 99.0).state == "right"


@pytest.mark.parametrize("world", [2, 587, 1024, 20_000])
def test_sums_of_many_ranks_are_exact_in_any_order(world: int) -> None:
    ranks = np.random.default_rng(world).permutation(world)
    total = np.float32(0)
    for rank in ranks:
        total = np.float32(total + np.float32(97 * reduce.factor(int(rank))))
    assert int(total) == 97 * sum(rank % 16 + 1 for rank in range(world))
    assert {reduce.factor(rank) for rank in range(8)} == set(range(1, 9)), "a node's ranks differ"
