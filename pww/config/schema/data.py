"""A corpus of text and its tokenizer, or images with labels."""

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


class Images(Section):
    """Images with labels, from local files."""

    name: Name
    kind: Literal["digits", "cifar10"]
    roots: Annotated[tuple[str, ...], Field(strict=False)]  # folders with a `cifar10` in them
    # what accuracy is measured on: a part of the training images, or the test set
    measure: Literal["held_out", "test", "lossy_test"]
    held_out_every: Annotated[int, Field(ge=2)]  # every n-th training image is held out
    max_images: Annotated[int, Field(ge=0)]  # that are trained on; 0: all
