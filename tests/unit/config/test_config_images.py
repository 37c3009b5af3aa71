"""ResNets and images: what fits together is composed, what does not is refused with a sentence."""

import pytest

from pww.config.load import compose
from pww.config.schema import Images
from pww.errors import ConfigError

RESNET, DIGITS = "model=resnet18", "model=resnet_digits"
LOCAL = "central.url=http://127.0.0.1:29510"
WRONG = [
    ([RESNET, "data=pydocs"], "data=pydocs: model=resnet18 looks at images; use data=digits or "
     "cifar10"),
    (["data=cifar10"], "data=cifar10: are images, and model=qwen3_debug reads text; use "
     "model=resnet18"),
    ([DIGITS, "data=cifar10"], "model=resnet_digits: is for digits; use model=resnet18, resnet34 "
     "or resnet50"),
    ([RESNET, "data=digits"], "data=digits: are 8x8 and grey; use model=resnet_digits"),
    (["diloco.recalibrate_bn=true"], "diloco.recalibrate_bn=true: model=qwen3_debug has no "
     "BatchNorm; leave it out"),
    ([DIGITS, "data.measure=test"], "data.measure=test: digits have no test set; use held_out"),
    ([RESNET, "optim=adamw"], "optim=adamw: model=resnet18 is trained with sgd"),
    (["optim=sgd"], "optim=sgd: model=qwen3_debug is trained with adamw or muon"),
    ([RESNET, LOCAL], f"{LOCAL}: the statistics of model=resnet18 do not travel to a central in "
     "this version; leave it out, and use diloco.replicas"),
    ([RESNET, "optim.accumulate=2"], "optim.accumulate=2: model=resnet18 takes a batch whole; "
     "use 1"),
    ([RESNET, "diloco.outer.optimizer=nesterov"], "diloco.outer.momentum=0: diloco.outer.optimizer="
     "nesterov without a momentum is sgd; give one too (diloco.outer.lr=0.7 "
     "diloco.outer.momentum=0.9 are usual, lr is 1 here), or use sgd"),
    ([RESNET, "parallel.activation_checkpoint=selective"], "parallel.activation_checkpoint="
     "selective: knows the layers of torchtitan's models only, not those of model=resnet18; use "
     "none, or full for whole blocks"),
    ([RESNET, "parallel.compile=true"], "parallel.compile=true: model=resnet18 is not compiled in "
     "this version; use false"),
    ([RESNET, "evaluation.sets=[{name: a, kind: text, files: [a]}]"], "evaluation.sets: are text, "
     "and model=resnet18 looks at images; leave them out"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "sentence"), WRONG, ids=lambda x: x[-1][:30])
def test_refused(words: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(words)
    assert sentence in caught.value.faults


def test_a_resnet_brings_its_images_optimiser_and_outer_optimiser() -> None:
    """FedAvg: momentum and BatchNorm's statistics do not fit each other."""
    config = compose([RESNET])
    assert isinstance(config.data, Images)
    assert (config.data.kind, config.optim.name) == ("cifar10", "sgd")
    outer = config.diloco.outer
    assert (outer.optimizer, outer.lr, outer.momentum) == ("sgd", 1.0, 0.0)
    assert compose([DIGITS]).data.name == "digits"
    # every image that is measured on, unless fewer are asked for
    assert compose([DIGITS]).evaluation.max_windows == config.evaluation.max_windows == 10_000
    assert compose([RESNET, "evaluation.max_windows=50"]).evaluation.max_windows == 50


def test_only_training_reads_images() -> None:
    with pytest.raises(ConfigError, match=r"data=cifar10: are images, which only pww\.train reads"):
        _ = compose([RESNET]).text
