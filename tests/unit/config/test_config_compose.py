"""What jobs of a sweep share is composed once: each is what Hydra would have composed alone."""

import pytest
from omegaconf import OmegaConf

from pww.config.compose import Source, composer
from pww.config.faults import Faults
from pww.config.words import line_of

LUMI = ("site=lumi", "model=qwen3_0.6b", "site.queue.account=project_1")
JOBS = [
    *((*LUMI, f"seed={seed}", "optim.lr=1e-3") for seed in (1, 2, 3)),
    (*LUMI, "site.queue.setup=[one,'two three']", "site.queue.time='02:00:00'"),
    (*LUMI, "seed=4", "seed=5"),  # the last one counts
    (*LUMI, "+optim.extra=1"),
    (*LUMI, "++seed=6"),
    (*LUMI, "codec=int4", "seed=7"),
    (*LUMI, "codec=int4", "diloco={inner_steps:7}"),
    (*LUMI, "codec=int4", "hydra.job.name=x"),
    (*LUMI, "codec=int4", "run.name=12e3"),
    LUMI,
]


def plain(tree):  # type: ignore[no-untyped-def]
    """What a configuration is made of, and what Hydra says that was chosen."""
    values = OmegaConf.to_container(tree)
    hydra = values.pop("hydra")
    return values, hydra["runtime"]["choices"], hydra["launcher"], hydra["sweep"]


def test_every_job_is_as_hydra_composes_it_alone() -> None:
    with composer(Source()) as ours:
        for words in JOBS:
            faults = Faults()
            overrides = ours.parse(words, faults)
            tree, _ = ours.tree(overrides, faults)
            alone = ours.compose([line_of(one) for one in overrides])
            assert faults.sentences == []
            assert plain(tree) == plain(alone), words


def test_trees_of_two_jobs_are_two() -> None:
    """Whoever changes one changes nothing of the next."""
    with composer(Source()) as ours:
        trees = []
        for seed in (1, 2, 3, 4):
            tree, _ = ours.tree(ours.parse([*LUMI, f"seed={seed}"], Faults()), Faults())
            trees.append(tree)
            OmegaConf.update(tree, "run.root", f"/changed-{seed}")
    assert [tree.seed for tree in trees] == [1, 2, 3, 4]
    assert [tree.run.root for tree in trees] == [f"/changed-{n}" for n in (1, 2, 3, 4)]


@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_value_that_is_refused_is_refused_in_the_same_words(before: int) -> None:
    with composer(Source()) as ours:
        for seed in range(before):
            ours.tree(ours.parse([*LUMI, f"seed={seed}"], Faults()), Faults())
        faults = Faults()
        tree, _ = ours.tree(ours.parse([*LUMI, "optim.lrr=1"], faults), faults)
    assert tree is not None
    (told,) = faults.sentences
    assert told.startswith("optim.lrr=1: optim has no key lrr; it has accumulate, ")
    assert told.endswith("; did you mean optim.lr?")
