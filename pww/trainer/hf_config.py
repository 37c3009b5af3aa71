"""Which configuration of `transformers` a configured model means, with the corpus's vocabulary.

Neither torch nor torchtitan is needed to say so; `transformers` is.
"""

import json
from pathlib import Path
from typing import Any

from pww.config.faults import did_you_mean
from pww.config.schema import HfModel
from pww.errors import ConfigError


def transformers_config(model: HfModel, *, padded_vocab: int) -> Any:
    """The `PretrainedConfig` that is meant, with our vocabulary and no special tokens."""
    try:
        from transformers import AutoConfig, __version__
    except ImportError as fault:
        raise ConfigError(
            [f"model={model.name}: needs transformers ({fault}); pip install 'pww[hf]'"]
        ) from None
    ours = {
        "vocab_size": padded_vocab,
        "tie_word_embeddings": model.tie_embeddings,
        # Ids of another vocabulary; a padding id would also freeze its row of the embedding
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    try:
        kind, given = _named(model.config)
        own = AutoConfig.for_model(kind, **given)
        names = sorted(own.to_dict())
        unknown = [name for name in model.changes if name not in names]
        if unknown:
            raise ConfigError(
                [
                    f"model.changes.{name}: {model.config} has no such option"
                    f"{did_you_mean(name, names)}"
                    for name in unknown
                ]
            )
        if given and own.tie_word_embeddings != model.tie_embeddings:
            raise ConfigError([_tied_otherwise(model)])
        # All at once: sizes that follow from others are worked out from these
        return AutoConfig.for_model(kind, **{**given, **model.changes, **ours})
    except (OSError, ValueError, TypeError) as fault:
        text = " ".join(str(fault).split())[:300]
        raise ConfigError(
            [
                f"model.config={model.config}: transformers {__version__} cannot make it ({text});"
                " give a model type that it knows, such as gpt2 or llama, or a folder with a "
                "config.json"
            ]
        ) from None


def _tied_otherwise(model: HfModel) -> str:
    tied = model.tie_embeddings
    theirs = "an output layer of its own" if tied else "its embedding as output layer"
    return (
        f"model.tie_embeddings={str(tied).lower()}: the model in {model.config} has {theirs}; give "
        f"model.tie_embeddings={str(not tied).lower()}, or change tie_word_embeddings in its "
        "config.json"
    )


def _named(config: str) -> tuple[str, dict[str, Any]]:
    """The model type, and what the folder's config.json says if it is a folder."""
    if not Path(config).is_dir():
        return config, {}
    given = json.loads(Path(config, "config.json").read_text(encoding="utf-8"))
    return given.pop("model_type", "(none)"), given
