"""What a user gave and nothing would read: refused, where a default of the same key may stand."""

from collections.abc import Collection, Iterator

from pww.config.schema import Config, Images, Optim

OF_A_CENTRAL = ("phase", "quorum", "grace", "staleness_window", "staleness_discount")
"""Keys of diloco about replicas that need not meet: those of one allocation always do."""


def without_effect(config: Config, given: Collection[str]) -> Iterator[str]:
    """A sentence for each key of `given` that this run has no use for."""
    if config.diloco.replicas > 1:
        for key in (f"diloco.{name}" for name in OF_A_CENTRAL):
            if key in given:
                yield (
                    f"{key}: has no effect with diloco.replicas={config.diloco.replicas}, whose "
                    "phases have the same steps and meet at each end; leave it out"
                )
    if isinstance(config.data, Images) and config.data.kind == "digits" and "data.roots" in given:
        yield (
            "data.roots: has no effect with data=digits, which scikit-learn brings; leave it out"
        )
    yield from unused(config.optim, given)


def unused(optim: Optim, given: Collection[str]) -> Iterator[str]:
    """The same, of a schedule alone."""
    if "optim.decay_share" in given and optim.decay != "wsd":
        yield (
            f"optim.decay_share={optim.decay_share:g}: has no effect with "
            f"optim.decay={optim.decay}, only wsd falls over a share of the corpus; use "
            "optim.decay=wsd, or leave it out"
        )
    if "optim.min_lr" in given and (stays := _stays(optim)):
        yield (
            f"optim.min_lr={optim.min_lr:g}: has no effect with {stays}, where the learning rate "
            "never falls; use optim.decay=cosine or wsd with room for the fall, or leave it out"
        )


def _stays(optim: Optim) -> str:
    """What keeps the rate where the rise left it; "" if it falls."""
    match optim.decay:
        case "constant":
            return "optim.decay=constant"
        case "cosine" if optim.warmup == 1:
            return "optim.warmup=1"
        case "wsd" if optim.decay_share == 0:
            return "optim.decay_share=0"
        case _:
            return ""
