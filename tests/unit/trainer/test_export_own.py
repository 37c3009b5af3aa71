"""A trained `model=hf/...` goes back to transformers: it loads what it made, with our weights."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tiny import PADDED, SEQ_LEN, Never, Steps, TinyCorpus, tiny_config

from pww.central import exporting
from pww.central.huggingface import CONFIG, MODEL
from pww.central.own_model import own_model
from pww.config.schema import Config, HfModel
from pww.errors import StateError
from pww.trainer.titan import TitanTrainer
from pww.transport.payload import write_theta

transformers = pytest.importorskip(
    "transformers", reason="transformers (in the dev extra) is not installed: exports go unchecked"
)
LLAMA = {
    "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
GPT2 = {
    "n_layer": 2, "n_embd": 32, "n_head": 2, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}  # fmt: skip


def hf(config: str, changes: dict[str, Any], *, tied: bool) -> HfModel:
    return HfModel.model_validate(
        {
            "kind": "hf", "name": "x", "config": config, "changes": changes, "seq_len": SEQ_LEN,
            "tie_embeddings": tied, "vocab_multiple": 256, "dtype": "fp32",
        }
    )  # fmt: skip


@pytest.fixture(params=[("gpt2", True), ("llama", False)], ids=["gpt2", "llama"])
def trained(request: pytest.FixtureRequest, ranks: Any) -> Iterator[tuple[Config, TitanTrainer]]:
    name, tied = request.param
    tree = tiny_config().model_dump()
    tree["model"] = hf(name, GPT2 if name == "gpt2" else LLAMA, tied=tied).model_dump()
    config = Config.model_validate(tree)
    trainer = TitanTrainer(config, TinyCorpus(), ranks=ranks)
    trainer.run(range(8), progress=0.1, progress_end=0.3, on_step=Steps(), stop=Never())
    yield config, trainer
    trainer.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_what_transformers_loads_says_what_was_trained(
    trained: tuple[Config, TitanTrainer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, trainer = trained
    theta = tmp_path / "theta.safetensors"
    write_theta(theta, trainer.tensors(), trainer.shapes())
    info = SimpleNamespace(round=3, state_hash="a" * 64)
    manifest = SimpleNamespace(padded_vocab=PADDED, end_of_document=0)
    monkeypatch.setattr(exporting, "_tokenizer", lambda _: (manifest, None))
    generation: Any = SimpleNamespace(theta=theta, info=info)
    folder = exporting.export_decoder(config, generation, tmp_path / "out")
    tokens = torch.from_numpy(np.asarray(TinyCorpus().windows([3, 5, 8]))[:, :-1].copy())
    model, told = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, torch_dtype=torch.float32
    )
    with torch.no_grad():
        ours = trainer._model(tokens).float()
        theirs = model(tokens).logits
    assert not any(told[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert ours.shape == theirs.shape == (3, SEQ_LEN, PADDED)
    assert float(ours.std()) > 0.01, "logits that differ"
    assert float((theirs - ours).abs().max()) < 1e-5
    assert model.config.tie_word_embeddings is config.model.tie_embeddings
    assert sum(p.numel() for p in model.parameters()) == sum(
        np.prod(shape) for shape in trainer.shapes().values()
    )
    written = json.loads((folder / CONFIG).read_text())
    assert written["architectures"] == [type(model).__name__]
    assert (written["bos_token_id"], written["eos_token_id"]) == (0, 0)
    before = (folder / MODEL).stat().st_mtime_ns
    exporting.export_decoder(config, generation, tmp_path / "out")
    assert (folder / MODEL).stat().st_mtime_ns == before, "it is there already"


def test_another_model_is_not_exported_under_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    model = hf("llama", LLAMA, tied=False)
    with pytest.raises(StateError, match=r"^model=x cannot be exported: transformers .* makes ano"):
        own_model(model, {"model.model.norm.weight": (33,)}, padded_vocab=PADDED)
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(StateError, match=r"^model=x cannot be exported: model=x: needs transform"):
        own_model(model, {}, padded_vocab=PADDED)
    with pytest.raises(StateError, match=r"^model=x can be exported only where the corpus is kno"):
        exporting._kind(model, Path("theta"), None)
    manifest: Any = SimpleNamespace(padded_vocab=PADDED)
    with pytest.raises(StateError, match=r"^gone cannot be exported: gone is not there"):
        exporting._kind(model, Path("gone"), manifest)
