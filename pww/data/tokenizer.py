"""The tokenizer: text to token ids and back, trained on the corpus or read from a `tokenizer.json`.

Text is text: a document that spells a special token is encoded as ordinary characters, so that only
the end of a document makes the end-of-document token. Nothing is added, truncated or padded by a
tokenizer's own settings. A byte-level tokenizer gives back every string exactly.
"""

import hashlib
import json
import lzma
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from pww.data.manifest import canonical_json
from pww.errors import DataError

ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")
"""What tokenizers call the end of a document, in the order in which we look for them."""
BPE_MINIMUM = 257
"""256 bytes and the end of a document."""


class TextTokenizer:
    """A fast tokenizer with a known end of document. `json` is its file; `digest` is over it."""

    def __init__(self, json_bytes: bytes, *, origin: str) -> None:
        """Loads a canonical `tokenizer.json`; `origin` names it in messages.

        Raises:
            DataError: it is not one, or has no end-of-document token.
        """
        self.json = json_bytes
        self.digest = hashlib.sha256(json_bytes).hexdigest()
        self._origin = origin
        try:
            self._tokenizer = Tokenizer.from_str(json_bytes.decode())
        except Exception as fault:  # the library raises bare Exception
            raise DataError(
                f"{origin} is not a tokenizer.json that `tokenizers` can load: {fault}"
            ) from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        vocab = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocab.values(), default=-1) + 1  # ids may have gaps
        found = [vocab[name] for name in ENDS if name in vocab]
        if not found:
            raise DataError(
                f"{origin} has no end-of-document token (looked for {', '.join(ENDS)});"
                " add one of them to its added_tokens, or set data.tokenizer.kind=bpe"
            )
        self.end = found[0]

    def encode(self, texts: Sequence[str]) -> list[npt.NDArray[np.uint32]]:
        """The ids of each text, without an end of document; on all cores.

        Raises:
            DataError: the tokenizer cannot encode a text.
        """
        try:
            # The same ids as encode_batch's, without the words and places that nobody reads here
            encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        except Exception as fault:  # the library raises bare Exception
            raise DataError(
                f"{self._origin} cannot encode this corpus: {fault};"
                " set data.tokenizer to another one"
            ) from None
        return [np.array(encoding.ids, np.uint32) for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids, special tokens spelled out; a cut character shows as U+FFFD."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text


def train_bpe(texts: Iterable[str], *, vocab_size: int) -> TextTokenizer:
    """Byte-level BPE of at most `vocab_size` tokens (fewer if no more pairs of the text repeat).

    The same texts give the same tokenizer on any number of threads.

    Raises:
        DataError: `vocab_size` leaves no room for the bytes and the end of a document.
    """
    if vocab_size < BPE_MINIMUM:
        raise DataError(
            f"data.tokenizer.vocab_size={vocab_size} is too small for 256 bytes and {ENDS[0]};"
            f" set it to {BPE_MINIMUM} or more"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[ENDS[0]],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return TextTokenizer(canonical_json(json.loads(tokenizer.to_str())), origin="the trained BPE")


def read_tokenizer(path: Path) -> TextTokenizer:
    """A Hugging Face `tokenizer.json`, or the same as `.json.xz`.

    Raises:
        DataError: the file cannot be read or is not a usable tokenizer.
    """
    try:
        data = path.read_bytes()
        if path.suffix == ".xz":
            data = lzma.decompress(data)
        return TextTokenizer(canonical_json(json.loads(data)), origin=str(path))
    except OSError as fault:
        raise DataError(f"cannot read tokenizer {path}: {fault.strerror}") from None
    except (lzma.LZMAError, ValueError) as fault:
        raise DataError(f"{path} is not a tokenizer.json: {fault}") from None
