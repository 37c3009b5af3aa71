"""A corpus of text and its tokenizer."""

from typing import Annotated, Literal

from pydantic import Field

from pww.config.schema.base import Name, Section

DataKind = Literal["pydocs", "text", "jsonl", "parquet"]
"""What the files are."""


class BpeTokenizer(Section):
    """Byte-level BPE trained on the corpus itself."""

    kind: Literal["bpe"]
    vocab_size: Annotated[int, Field(ge=256, le=2**20)]


class FileTokenizer(Section):
    """A Hugging Face `tokenizer.json` that is here already."""

    kind: Literal["file"]
    path: str


class Data(Section):
    """A corpus of text."""

    name: Name
    kind: DataKind
    files: Annotated[
        tuple[str, ...], Field(strict=False)
    ]  # globs, below one of `roots`; [] for pydocs
    column: Annotated[str, Field(min_length=1)]  # of parquet, or key of jsonl, that holds the text
    roots: Annotated[tuple[str, ...], Field(strict=False)]
    cache: str  # tokenised corpora are kept below it
    tokenizer: Annotated[BpeTokenizer | FileTokenizer, Field(discriminator="kind")]
    # Share of the windows kept for evaluation; 0: only of an evaluation set, which is all of it one
    held_out: Annotated[float, Field(ge=0, lt=0.5)]
    max_windows: Annotated[int, Field(ge=0)]  # 0: all
    workers: Annotated[int, Field(ge=0, le=1024)]  # processes that tokenise; 0: as large as it is
