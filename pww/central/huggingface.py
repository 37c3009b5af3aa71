"""theta_outer as a folder that Hugging Face's `transformers` loads.

    model.safetensors        theta under their names, fp32, one tensor after the other
    tokenizer.json           the run's, and tokenizer_config.json that names its end of document
    config.json              the architecture; written last, so that a folder with it is complete

Padded rows of the vocabulary stay: `vocab_size` is the padded one. A tied model has no
`lm_head.weight`.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pww.central.architecture import Kind, architecture, their_names, their_rows
from pww.errors import PayloadError, StateError
from pww.folder import write_durably
from pww.transport.tensorfile import TensorReader, TensorWriter

MODEL, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a theta besides its tensors."""

    decoder: Kind
    round: int
    state_hash: str
    end_of_document: int | None = None  # token id


def export(theta: Path, folder: Path, *, facts: Facts, tokenizer: Path | None) -> Path:
    """Writes `folder` from a theta file; complete once this returns, safe to repeat.

    Memory: the largest tensor, twice where its rows are sorted anew. What is there already of the
    same theta is not written again.

    Raises:
        StateError: theta is not of an architecture that is known here, or is damaged, or the disk
            refused.
    """
    with told_faults(theta, folder), TensorReader(theta) as reader:
        shapes = {name: reader.shape(name) for name in reader.names}
        config = _text(architecture(shapes, facts.decoder) | _tokens(facts))
        if _is_there(folder, facts, config=config, tokenizer=tokenizer):
            return folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONFIG).unlink(missing_ok=True)
        _write_model(reader, folder / MODEL, facts)
        if tokenizer is not None:
            _write_tokenizer(tokenizer, folder, facts)
        write_durably(folder / CONFIG, config)
    return folder


@contextmanager
def told_faults(theta: Path, folder: Path) -> Iterator[None]:
    """Around an export of `theta` into `folder`: what goes wrong becomes a sentence.

    Raises:
        StateError: theta is damaged, or the disk refused.
    """
    try:
        yield
    except PayloadError as why:
        raise StateError(f"{theta} cannot be exported: {why}") from why
    except OSError as why:
        raise StateError(
            f"the export cannot be written to {folder}: {why}. Nothing else is touched: make room, "
            "or name another folder, and export again"
        ) from why


def _write_model(reader: TensorReader, path: Path, facts: Facts) -> None:
    shapes = {name: reader.shape(name) for name in reader.names}
    names = their_names(shapes, facts.decoder)
    layout = {theirs: (torch.float32, reader.shape(name)) for name, theirs in names.items()}
    told = {"format": "pt", "round": str(facts.round), "state_hash": facts.state_hash}
    with TensorWriter(path, layout, told, hashed=False) as writer:
        for name, theirs in names.items():
            writer.add(theirs, their_rows(name, reader.get(name), facts.decoder))


def _tokens(facts: Facts) -> dict[str, int]:
    end = facts.end_of_document
    return {} if end is None else {"bos_token_id": end, "eos_token_id": end}


def _is_there(folder: Path, facts: Facts, *, config: bytes, tokenizer: Path | None) -> bool:
    """Whether a complete export of this theta is in `folder`, its tokenizer too if there is one."""
    if tokenizer is not None and not (folder / TOKENIZER).exists():
        return False
    try:
        if (folder / CONFIG).read_bytes() != config:
            return False
        with TensorReader(folder / MODEL) as reader:
            return reader.metadata.get("state_hash") == facts.state_hash
    except (OSError, PayloadError):
        return False


def _write_tokenizer(path: Path, folder: Path, facts: Facts) -> None:
    """The tokenizer, and which of its tokens ends a document."""
    data = path.read_bytes()
    write_durably(folder / TOKENIZER, data)
    try:
        added = json.loads(data)["added_tokens"]
        end = next(one["content"] for one in added if one["id"] == facts.end_of_document)
    except (ValueError, KeyError, TypeError, StopIteration):
        return  # transformers finds what it needs in tokenizer.json all the same
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end, "bos_token": end}
    write_durably(folder / "tokenizer_config.json", _text(told))


def _text(table: Mapping[str, Any]) -> bytes:
    return json.dumps(table, indent=2).encode() + b"\n"
