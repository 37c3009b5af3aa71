"""What a corpus is made of, before any of it is read: its tokenizer's file, and that of others.

Neither numpy nor tokenizers is needed here, so that `dry=true` can ask at once.
"""

from pathlib import Path

from pww.config.schema import BpeTokenizer, Data, EvaluationSet, FileTokenizer
from pww.data.sources import DEFAULT_COLUMN
from pww.errors import DataError

HAVE_COLUMNS = ("jsonl", "parquet")
"""Kinds for which `data.column` means something; the others refuse another than the default."""


def tokenizer_path(data: Data, project: Path) -> Path | None:
    """Where a given tokenizer is, below `project` or one of `data.roots`; None: to be trained.

    Raises:
        DataError: it is in none of them.
    """
    match data.tokenizer:
        case BpeTokenizer():
            return None
        case FileTokenizer(path=name):
            folders = [project, *(project / Path(root).expanduser() for root in data.roots if root)]
            candidates = [folder / Path(name).expanduser() for folder in folders]
            for path in candidates:
                if path.is_file():
                    return path
            looked = ", ".join(dict.fromkeys(str(path) for path in candidates))
            raise DataError(
                f"no tokenizer {name!r} (data.tokenizer.path); looked for {looked};"
                " set data.tokenizer.path to a tokenizer.json, or data.tokenizer.kind=bpe"
            )


def of_set(data: Data, one: EvaluationSet) -> Data:
    """What an evaluation set is read from: its own files, everything else as in `data`."""
    column = data.column if one.kind in HAVE_COLUMNS else DEFAULT_COLUMN
    told = {"name": one.name, "kind": one.kind, "files": one.files, "column": column}
    return data.model_copy(update=told)
