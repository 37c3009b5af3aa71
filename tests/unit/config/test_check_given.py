"""A key that was given and that nothing would read is refused; a default of it is not."""

import pytest

from pww.config.check_given import without_effect
from pww.config.load import compose
from pww.config.prepare import prepare
from pww.config.schema import Config

MIN_LR = (
    ", where the learning rate never falls; use optim.decay=cosine or wsd with room for the fall, "
    "or leave it out"
)
SHARE = (
    ", only wsd falls over a share of the corpus; use optim.decay=wsd, or leave it out"
)  # fmt: skip
CASES = {
    "cosine": (
        {"optim.decay": "cosine", "optim.decay_share": 0.3, "optim.min_lr": 0.2},
        ["optim.decay_share=0.3: has no effect with optim.decay=cosine" + SHARE],
    ),
    "constant": (
        {"optim.decay": "constant", "optim.decay_share": 0.3, "optim.min_lr": 0.2},
        [
            "optim.decay_share=0.3: has no effect with optim.decay=constant" + SHARE,
            "optim.min_lr=0.2: has no effect with optim.decay=constant" + MIN_LR,
        ],
    ),
    "wsd": ({"optim.decay": "wsd", "optim.decay_share": 0.3, "optim.min_lr": 0.2}, []),
    "rises to the end": (
        {"optim.decay": "cosine", "optim.warmup": 1.0, "optim.min_lr": 0.2},
        ["optim.min_lr=0.2: has no effect with optim.warmup=1" + MIN_LR],
    ),
    "wsd that never falls": (
        {"optim.decay": "wsd", "optim.decay_share": 0.0, "optim.min_lr": 0.2},
        ["optim.min_lr=0.2: has no effect with optim.decay_share=0" + MIN_LR],
    ),
}


@pytest.fixture(scope="module")
def base() -> Config:
    return compose()


@pytest.mark.parametrize("name", CASES)
def test_keys_of_another_schedule_are_refused_where_they_were_given(
    base: Config, name: str
) -> None:
    keys, told = CASES[name]
    update = {key.partition(".")[2]: value for key, value in keys.items()}
    config = base.model_copy(update={"optim": base.optim.model_copy(update=update)})
    assert list(without_effect(config, frozenset(keys))) == told
    assert list(without_effect(config, frozenset({"optim.decay", "optim"}))) == []


def test_replicas_that_always_meet_have_no_use_for_a_quorum() -> None:
    config = compose(["diloco.replicas=2", "parallel.ranks=2"])
    keys = ["phase", "quorum", "grace", "staleness_window", "staleness_discount"]
    given = frozenset(f"diloco.{key}" for key in keys)
    assert list(without_effect(config, given)) == [
        f"diloco.{key}: has no effect with diloco.replicas=2, whose phases have the same steps and "
        "meet at each end; leave it out"
        for key in keys
    ]
    assert list(without_effect(config, frozenset({"diloco.norm_clip", "diloco.inner_steps"}))) == []
    assert list(without_effect(compose(), given)) == []


def test_digits_are_looked_for_nowhere() -> None:
    told = "data.roots: has no effect with data=digits, which scikit-learn brings; leave it out"
    given = frozenset({"data.roots"})
    assert list(without_effect(compose(["model=resnet_digits"]), given)) == [told]
    assert list(without_effect(compose(["model=resnet18"]), given)) == []


def test_a_key_inside_of_a_value_counts_as_given() -> None:
    seen: list[frozenset[str]] = []

    def refine(config: Config, given: frozenset[str]) -> Config:
        seen.append(given)
        return config

    prepare(["++optim={decay_share: 0.3, lr: 1}", "metrics.wandb={mode: disabled}"], refine=refine)
    assert seen == [
        frozenset({"optim", "optim.decay_share", "optim.lr", "metrics.wandb", "metrics.wandb.mode"})
    ]
