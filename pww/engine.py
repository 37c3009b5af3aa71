"""How a rank's inner loop is built from its configuration: what it trains on, then the engine.

What a rank of a run and one of a smoke test have in common. Nothing here is imported with torch
before it is wanted: what is imported first decides which device torchtitan drives.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from pww.config import paths
from pww.config.schema import Config, Images
from pww.errors import DataError, PwwError

if TYPE_CHECKING:
    from pww.data import Corpus
    from pww.lease.space import CorpusFacts
    from pww.replica.groups import Allocation
    from pww.trainer.api import Trainer
    from pww.trainer.ranks import Ranks

log = logging.getLogger(__name__)
Engine = Callable[[Config, "Corpus", "Ranks"], "Trainer"]
"""Builds the inner loop of a language model."""


def torchtitan(config: Config, corpus: "Corpus", ranks: "Ranks") -> "Trainer":
    """The engine of every language model, and the corpora that it is evaluated on besides."""
    from pww.trainer.corpora import on_every_rank
    from pww.trainer.evaluation_sets import open_sets
    from pww.trainer.titan import TitanTrainer

    sets = on_every_rank(
        ranks, lambda: open_sets(config, corpus, project=paths.PROJECT), cache=config.text.cache
    )
    return TitanTrainer(config, corpus, ranks=ranks, sets=sets)


def opened(
    config: Config, place: "Allocation", *, engine: Engine = torchtitan
) -> "tuple[CorpusFacts, Callable[[], Trainer]]":
    """Collective: what is trained on, and how its engine is built; `engine` is for text.

    Raises:
        DataError: on every rank, it is not there or cannot be used.
    """
    if isinstance(config.data, Images):
        return _images(config, place)
    return _text(config, place, engine)


def _text(
    config: Config, place: "Allocation", engine: Engine
) -> "tuple[CorpusFacts, Callable[[], Trainer]]":
    """The corpus, found or made by rank 0, and how its engine is built."""
    from pww.config.one_replica import of_one
    from pww.data import prepare
    from pww.trainer.corpora import on_every_rank

    data = config.text

    def find_or_make() -> "dict[str, Corpus]":
        found = prepare(
            data,
            seq_len=config.model.seq_len,
            vocab_multiple=config.model.vocab_multiple,
            project=paths.PROJECT,
        )
        return {data.name: found}

    corpus = on_every_rank(place.everyone, find_or_make, cache=data.cache)[data.name]
    return corpus.manifest, lambda: engine(of_one(config), corpus, place.ranks)


def _images(config: Config, place: "Allocation") -> "tuple[CorpusFacts, Callable[[], Trainer]]":
    """The images, read by every rank, and how a ResNet's engine is built."""
    from pww.config.one_replica import of_one
    from pww.data.images.gallery import open_gallery
    from pww.trainer.vision import VisionTrainer

    assert isinstance(config.data, Images)
    fault: PwwError | None = None
    try:
        gallery = open_gallery(config.data, project=paths.PROJECT)
    except DataError as why:
        fault = why
    place.everyone.agree_on_fault(fault)
    if place.is_first:
        log.info(
            "trained on the %s, measured on the %s", gallery.train.source, gallery.measured.source
        )
    return gallery, lambda: VisionTrainer(of_one(config), gallery, ranks=place.ranks)
