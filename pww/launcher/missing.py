"""What a run would miss once it has started: `dry=true` looks for it before anything is queued.

Nothing that takes time is done: text is found and not read, a model's type is asked of nobody.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from pww.clock import Clock
from pww.config import paths
from pww.config.schema import Config, HfModel, Images
from pww.data.inputs import of_set, tokenizer_path
from pww.data.sources import open_source
from pww.errors import PwwError


def missing(config: Config, clock: Clock) -> list[str]:
    """A sentence for everything of `config` that is not on this machine, or cannot be used."""
    found = list(_model(config))
    data, project = config.data, paths.PROJECT
    if isinstance(data, Images):
        return found + _images(data)
    found += _faults(lambda: open_source(data, project=project))
    found += _faults(lambda: _tokenizer(config))
    for one in config.evaluation.sets:
        look = partial(open_source, of_set(data, one), project=project)
        found += [f"evaluation set {one.name}: {fault}" for fault in _faults(look)]
    if config.central.url != "none" and config.central.bundle != "none":
        found += _faults(lambda: _bundle(config, clock))
    return found


def _images(data: Images) -> list[str]:
    """The folder of the images; digits are few enough to be read."""
    from pww.data.images.gallery import folder_of, open_gallery

    if data.kind == "digits":
        return list(_faults(lambda: open_gallery(data, project=paths.PROJECT)))
    return list(_faults(lambda: folder_of(data, paths.PROJECT)))


def _model(config: Config) -> Iterator[str]:
    """The configuration of a model of transformers, where it is a folder."""
    model = config.model
    if not isinstance(model, HfModel):
        return
    if find_spec("transformers") is None:
        yield f"model={model.name}: needs transformers; pip install 'pww[hf]'"
    key, folder = f"model.config={model.config}", Path(model.config)
    remedy = "give a folder with a config.json, or a model type of transformers such as gpt2"
    if folder.is_file():
        yield f"{key}: is a file; {remedy}"
    elif not folder.is_dir():
        if folder.name != model.config:  # a type's name has no /
            yield f"{key}: there is no folder {folder.absolute()}; {remedy}"
    else:
        try:
            if "model_type" not in json.loads((folder / "config.json").read_text("utf-8")):
                yield f"{key}: its config.json names no model_type; {remedy}"
        except OSError as fault:
            yield f"{key}: {folder.absolute() / 'config.json'}: {fault.strerror}; {remedy}"
        except (ValueError, TypeError) as fault:
            yield f"{key}: its config.json is not JSON ({fault}); {remedy}"


def _tokenizer(config: Config) -> None:
    """Reads the tokenizer that is given, if one is."""
    path = tokenizer_path(config.text, paths.PROJECT)
    if path is not None:
        from pww.data.tokenizer import read_tokenizer

        read_tokenizer(path)


def _bundle(config: Config, clock: Clock) -> None:
    """Reads the keys of this site."""
    from pww.transport.bundle import Bundle

    folder = paths.PROJECT / config.central.bundle
    Bundle.read(folder, replica=config.replica_id, clock=clock)


def _faults(look: Callable[[], object]) -> Iterator[str]:
    try:
        look()
    except PwwError as fault:
        yield str(fault)
