"""Which theta of a run is exported, and what goes with it: its configuration and tokenizer."""

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from pww.central.architecture import Decoder, Kind
from pww.central.audit import reading
from pww.central.final import FOLDER
from pww.central.generations import Generation, Generations
from pww.central.huggingface import TOKENIZER, Facts, export
from pww.central.ledger import FILE
from pww.config import paths
from pww.config.load import read_config
from pww.config.schema import Config, CustomModel, HfModel, ImageModel, Model, ShippedModel
from pww.data.corpus import find
from pww.data.manifest import Manifest, read_manifest
from pww.errors import DataError, PayloadError, PwwError, StateError
from pww.transport.tensorfile import TensorReader

log = logging.getLogger(__name__)
EXPORT = "export"


def export_final(config: Config, run: Path, generation: Generation) -> str:
    """Exports the last theta into `run/final`, beside it; the line to tell a person.

    A run that is complete stays complete if this fails: it is told, and can be done again.
    """
    folder = run / FOLDER
    try:
        export_decoder(config, generation, folder)
    except PwwError as why:
        log.warning("no export for transformers: %s", why)
        return f"export   none: {why}"
    return f"export   {paths.shown(folder)}, for transformers' from_pretrained"


@dataclass(frozen=True, slots=True)
class Chosen:
    """What is exported, and where to."""

    config: Config
    generation: Generation
    folder: Path


def choose(run: Path, out: Path | None) -> Chosen:
    """The newest theta of a run that goes on or is complete.

    Without `out` it goes to `final` of a complete run, else to `export`, in the run's folder.

    Raises:
        StateError: the folder holds no theta, or it cannot be exported.
    """
    state = run / "central"
    if not state.is_dir():
        raise StateError(
            f"{run} holds no theta_outer: name the folder of a central, or of a run that trained "
            "alone (a site's folder has theirs only)"
        )
    if out is not None:
        for folder in (out.resolve(), *out.resolve().parents):
            if folder == state.resolve() or (folder / FILE).exists():
                raise StateError(
                    f"out={out} is in {folder}, where the ledger of a run and its generations are, "
                    "and nothing else may be: name another folder, or leave out= away"
                )
    config = read_config(run / paths.CONFIG_FILE)
    with reading(run) as ledger:
        rows = ledger.rows("SELECT generation FROM run")
    name = "" if not rows else str(rows[0][0])
    if not name:
        raise StateError(f"run {run} has no theta yet: export it after the first round")
    generation = Generations(state / "generations").open(name)
    final = run / FOLDER / "theta.safetensors"
    return Chosen(config, generation, out or run / (FOLDER if final.exists() else EXPORT))


def export_decoder(config: Config, generation: Generation, folder: Path) -> Path:
    """Exports a language model for transformers; the folder it is in.

    Raises:
        StateError: it cannot be exported.
    """
    info = generation.info
    manifest, tokenizer = _tokenizer(config)
    kind = _kind(config.model, generation.theta, manifest)
    facts = Facts(
        kind, round=info.round, state_hash=info.state_hash,
        end_of_document=None if manifest is None else manifest.end_of_document,
    )  # fmt: skip
    return export(generation.theta, folder, facts=facts, tokenizer=tokenizer)


def _kind(model: Model, theta: Path, manifest: Manifest | None) -> Kind:
    """What a configured model is for transformers.

    Raises:
        StateError: nobody knows.
    """
    if isinstance(model, ImageModel):
        raise StateError(
            f"model={model.name} cannot be exported for transformers, which has no such network; "
            "python -m pww.export writes it under torchvision's names"
        )
    if not isinstance(model, HfModel):
        return decoder(model)
    if manifest is None:
        raise StateError(
            f"model={model.name} can be exported only where the corpus is known, whose vocabulary "
            "it has: give the central its manifest.json (central.manifest)"
        )
    from pww.central.own_model import own_model

    try:
        with TensorReader(theta) as reader:
            shapes = {name: reader.shape(name) for name in reader.names}
    except (OSError, PayloadError) as why:
        raise StateError(f"{theta} cannot be exported: {why}") from why
    return own_model(model, shapes, padded_vocab=manifest.padded_vocab)


def decoder(model: CustomModel | ShippedModel) -> Decoder:
    """Which of torchtitan's decoders a configured model is."""
    match model:
        case CustomModel(family="llama3"):
            return Decoder("llama3", model.seq_len, head_dim=model.head_dim)
        case ShippedModel(family="llama3"):
            head_dim = 64 if model.flavor == "1B" else 128  # torchtitan's sizes
            return Decoder("llama3", model.seq_len, head_dim=head_dim)
        case CustomModel() | ShippedModel():
            return Decoder("qwen3", model.seq_len)
        case _:
            assert_never(model)


def _tokenizer(config: Config) -> tuple[Manifest | None, Path | None]:
    """The corpus' numbers and its tokenizer, as far as they are on this machine."""
    try:
        if config.central.manifest != "none":
            path = paths.PROJECT / config.central.manifest
            manifest, tokenizer = read_manifest(path), path.with_name(TOKENIZER)
        else:
            corpus = find(  # and not `prepare`, which may take hours
                config.text, seq_len=config.model.seq_len,
                vocab_multiple=config.model.vocab_multiple, project=paths.PROJECT,
                command="python -m pww.data tokenize, and the words of the run",
            )  # fmt: skip
            manifest, tokenizer = corpus.manifest, corpus.tokenizer_file
    except DataError as why:
        log.warning("the export has no tokenizer: %s", why)
        return None, None
    try:
        theirs = hashlib.sha256(tokenizer.read_bytes()).hexdigest()
    except OSError as why:
        log.warning("the export has no tokenizer: %s; copy tokenizer.json there", why)
        return manifest, None
    if theirs != manifest.tokenizer:
        log.warning("the export has no tokenizer: %s is not the corpus'", tokenizer)
        return manifest, None
    return manifest, tokenizer
