"""What makes two models one that their tensors' names and shapes do not tell, as one digest.

Four heads of 16 and two of 32 have the same tensors, and so have two activations: sites that differ
there would be merged without a word. No torch: the central compares its own configuration.
"""

import hashlib
import json
from pathlib import Path

from pww.config.schema import HfModel, Model

FREE = ("name", "dtype", "vocab_multiple")
"""What may differ: a label, what a machine computes in, and what the shapes tell."""


def architecture(model: Model) -> str:
    """SHA-256 in hex over the model's settings; "" if a folder that they name is not here."""
    settings = model.model_dump(mode="json", exclude=set(FREE))
    if isinstance(model, HfModel) and ("/" in model.config or Path(model.config).is_dir()):
        try:
            settings["config"] = json.loads(Path(model.config, "config.json").read_bytes())
        except (OSError, ValueError):
            return ""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
