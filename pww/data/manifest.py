"""The manifest: a tokenised corpus in one small JSON file that two sites can compare by digest.

A central needs this file only, never the shards. Paths, names and machines are not in it, so that
two sites with the same text, tokenizer and widths have the same digest.
"""

import hashlib
import json
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from pww.errors import DataError
from pww.wire import Count, Digest

TOOL = "pww.data/2"
"""Raised whenever the same text and settings would give other windows or digests."""
FILE = "manifest.json"


class Shard(BaseModel):
    """One `.npy` file of windows, shape `[windows, window_tokens]`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str
    windows: Count
    size_bytes: Count
    sha256: Digest


class Manifest(BaseModel):
    """A tokenised corpus in numbers.

    `num_tokens == (num_windows + num_held_out + num_left_out) * window_tokens + tail_tokens`:
    nothing is lost but the stated tail, the ends of the two streams that fill no window.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    tool: str
    corpus: Digest  # over the documents' text, in order: digest.py
    tokenizer: Digest  # over the canonical tokenizer.json
    window_tokens: Count  # seq_len + 1
    dtype: Literal["uint16", "uint32"]
    vocab_size: Count  # largest id + 1
    padded_vocab: Count
    end_of_document: Count  # token id
    num_documents: Count
    num_empty: Count  # documents without text: skipped
    num_tokens: Count  # of training and held-out text, ends of documents included
    num_windows: Count  # for training
    num_held_out: Count
    num_left_out: Count  # training windows beyond `data.max_windows`
    tail_tokens: Count
    shards: tuple[Shard, ...]
    held_out: tuple[Shard, ...]

    @property
    def seq_len(self) -> int:
        """Inputs, and targets, per window."""
        return self.window_tokens - 1

    @property
    def digest(self) -> str:
        """SHA-256 over the canonical JSON of everything else."""
        return hashlib.sha256(canonical_json(self.model_dump(mode="json"))).hexdigest()

    def to_json(self) -> bytes:
        """The file's bytes: sorted keys, with the digest."""
        fields = self.model_dump(mode="json") | {"digest": self.digest}
        return json.dumps(fields, indent=1, sort_keys=True).encode() + b"\n"


def canonical_json(value: object) -> bytes:
    """One spelling for each JSON value: sorted keys, no spaces, UTF-8."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


def read_manifest(path: Path) -> Manifest:
    """A manifest whose digest fits its content.

    Raises:
        DataError: it is missing, is not a manifest of this version, or was changed.
    """
    remedy = f"delete {path.parent} and start again"
    try:
        fields = json.loads(path.read_bytes())
        if not isinstance(fields, dict):
            raise ValueError("not a JSON object")
        claimed = fields.pop("digest")
        manifest = Manifest.model_validate_json(canonical_json(fields))
    except OSError as fault:
        raise DataError(f"cannot read {path}: {fault.strerror}; {remedy}") from None
    except (ValueError, KeyError) as fault:
        raise DataError(
            f"{path} is not a manifest of {TOOL} ({_reason(fault)}); {remedy}"
        ) from None
    if claimed != manifest.digest:
        raise DataError(
            f"{path} says digest {claimed}, but its content has {manifest.digest}; {remedy}"
        )
    return manifest


def _reason(fault: Exception) -> str:
    """One line for a person."""
    match fault:
        case ValidationError():
            first = fault.errors()[0]
            return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
        case KeyError():
            return f"no key {fault}"
        case _:
            return str(fault)
