"""Rules of images: what a ResNet trains on, by what optimiser, and what it cannot have."""

from collections.abc import Callable, Iterator

from pww.config.schema import Config, Images


def images_fit(config: Config) -> Iterator[str]:
    """A ResNet has images, and nothing else has them."""
    model, data = config.model, config.data
    if model.kind == "resnet" and not isinstance(data, Images):
        yield f"data={data.name}: model={model.name} looks at images; use data=digits or cifar10"
    elif model.kind != "resnet" and isinstance(data, Images):
        yield f"data={data.name}: are images, and model={model.name} reads text; use model=resnet18"
    elif model.kind == "resnet" and isinstance(data, Images):
        small = model.layers == "small"
        if small and data.kind != "digits":
            yield f"model={model.name}: is for digits; use model=resnet18, resnet34 or resnet50"
        elif not small and data.kind == "digits":
            yield f"data={data.name}: are 8x8 and grey; use model=resnet_digits"
    if model.kind != "resnet" and config.diloco.recalibrate_bn:
        yield f"diloco.recalibrate_bn=true: model={model.name} has no BatchNorm; leave it out"
    if isinstance(data, Images) and data.kind == "digits" and data.measure != "held_out":
        yield f"data.measure={data.measure}: digits have no test set; use held_out"


def optimizer_fits(config: Config) -> Iterator[str]:
    """Muon and AdamW are the language models' here, SGD the ResNets'."""
    model, name = config.model, config.optim.name
    if (model.kind == "resnet") != (name == "sgd"):
        right = "sgd" if model.kind == "resnet" else "adamw or muon"
        yield f"optim={name}: model={model.name} is trained with {right}"


def resnet_can(config: Config) -> Iterator[str]:
    """What of the other keys a ResNet has no use for is refused rather than ignored."""
    if config.model.kind != "resnet":
        return
    name = config.model.name
    if config.central.url != "none":
        yield (
            f"central.url={config.central.url}: the statistics of model={name} do not travel to a "
            "central in this version; leave it out, and use diloco.replicas"
        )
    if config.optim.accumulate != 1:
        yield f"optim.accumulate={config.optim.accumulate}: model={name} takes a batch whole; use 1"
    if config.parallel.activation_checkpoint == "selective":
        yield (
            "parallel.activation_checkpoint=selective: knows the layers of torchtitan's models "
            f"only, not those of model={name}; use none, or full for whole blocks"
        )
    if config.parallel.compile:
        yield f"parallel.compile=true: model={name} is not compiled in this version; use false"
    if config.evaluation.sets:
        yield f"evaluation.sets: are text, and model={name} looks at images; leave them out"


RULES: tuple[tuple[tuple[str, ...], Callable[[Config], Iterator[str]]], ...] = (
    (("model", "data", "diloco.recalibrate_bn"), images_fit),
    (("model", "optim"), optimizer_fits),
    (("model", "central.url", "optim", "parallel", "evaluation.sets"), resnet_can),
)
