"""Other corpora to evaluate on: read like the run's own, with its tokenizer and window length."""

from collections.abc import Mapping
from pathlib import Path

from pww.config.schema import Config, FileTokenizer
from pww.data import Corpus, prepare
from pww.data.inputs import of_set
from pww.errors import DataError


def open_sets(config: Config, corpus: Corpus, *, project: Path) -> Mapping[str, Corpus]:
    """The corpora of `evaluation.sets` by name: from the cache, else tokenised now.

    Of each, `evaluation.max_windows` windows are kept, spread over all of its text; none of it is
    held out, since nobody trains on it.

    Raises:
        DataError: text or cache cannot be used, or there is too little text.
    """
    opened = {}
    for one in config.evaluation.sets:
        data = of_set(config.text, one).model_copy(
            update={
                "tokenizer": FileTokenizer(kind="file", path=str(corpus.tokenizer_file.resolve())),
                "held_out": 0.0, "max_windows": config.evaluation.max_windows,
            }
        )  # fmt: skip
        try:
            found = prepare(
                data, seq_len=config.model.seq_len, vocab_multiple=config.model.vocab_multiple,
                project=project,
            )  # fmt: skip
        except DataError as why:
            raise DataError(f"evaluation set {one.name}: {why}") from why
        if found.manifest.tokenizer != corpus.manifest.tokenizer:
            raise DataError(
                f"evaluation set {one.name} in {found.folder} was tokenised with another tokenizer "
                f"({found.manifest.tokenizer}) than the run's ({corpus.manifest.tokenizer}): "
                f"delete {found.folder} and start again"
            )
        opened[one.name] = found
    return opened
