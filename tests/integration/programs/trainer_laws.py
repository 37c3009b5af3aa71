"""trainer_laws.py FOLDER NAME...: trains the same windows in every layout; FOLDER/NAME.json, .pt.

Each name is one of LAYOUTS. A layout's rank 0 writes losses, parameters and the optimiser's state.
"""

import json
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import odd_shapes
import torch
from forked import in_ranks
from tiny import Never, Steps, TinyCorpus, tiny_config
from torch.distributed.tensor import DTensor

from pww.config.schema import Config
from pww.trainer.ranks import Ranks, init_ranks
from pww.trainer.titan import TitanTrainer
from pww.trainer.titan_cpu import install

IDS = [5, 900, 17, 3, 44, 8, 999, 0, 61, 12, 7, 300, 301, 302, 303, 304, 305, 306, 307]
MORE = [101, 102, 103, 104, 105, 401, 402, 403, 404, 405, 406]
# Without a limit on gradients their size shows in the optimiser's averages (Adam itself hides it)
FREE = {"optim.batch_windows": 8, "optim.clip_norm": 1e9, "optim.lr": 1e-3}
MUON = {"optim": {"name": "muon", "momentum": 0.95, "newton_schulz": 5}}
LLAMA = {"model.family": "llama3"}
GPT2 = {
    "kind": "hf", "name": "gpt2", "config": "gpt2", "seq_len": 16, "tie_embeddings": True,
    "vocab_multiple": 256, "dtype": "fp32",
    "changes": {
        "n_layer": 2, "n_embd": 32, "n_head": 4, "n_positions": 32,
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
    },
}  # fmt: skip
HSDP = {"parallel.kind": "hsdp", "parallel.shard_ranks": 2}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "single": (1, {}),
    "single-ddp2": (2, {"parallel.kind": "ddp"}),
    "single-fsdp2-twice": (2, {"parallel.kind": "fsdp", "optim.accumulate": 2}),
    "single-hsdp4": (4, HSDP),
    "single-twice": (1, {"optim.accumulate": 2}),
    "single-four": (1, {"optim.accumulate": 4}),
    "single-selective": (1, {"parallel.activation_checkpoint": "selective"}),
    "single-full": (1, {"parallel.activation_checkpoint": "full"}),
    "bf16": (1, {"model.dtype": "bf16"}),
    "bf16-ddp2": (2, {"parallel.kind": "ddp", "model.dtype": "bf16"}),
    "muon": (1, MUON),
    "muon-hsdp4": (4, {**HSDP, **MUON}),
    "llama": (1, LLAMA),
    "llama-fsdp2": (2, {"parallel.kind": "fsdp", **LLAMA}),
    "gpt2": (1, {"model": GPT2}),
    "gpt2-fsdp2": (2, {"model": GPT2, "parallel.kind": "fsdp"}),
    "gpt2-full": (1, {"model": GPT2, "parallel.activation_checkpoint": "full"}),
}


def origin(name: str) -> str:
    """The layout of one rank whose training this one must repeat."""
    return name.partition("-")[0]


def config_of(name: str) -> Config:
    """A layout's configuration; whole groups are given as dicts."""
    ranks, over = LAYOUTS[name]
    tree = tiny_config(
        {"parallel.ranks": ranks, **FREE, **{k: v for k, v in over.items() if "." in k}}
    ).model_dump()
    for group, values in over.items():
        if group == "model":
            tree["model"] = values
        elif isinstance(values, Mapping):
            tree[group] |= values
    return Config.model_validate(tree)


def phase(trainer: TitanTrainer, ids: list[int]) -> dict[str, Any]:
    steps = Steps()
    result = trainer.run(ids, progress=0.2, progress_end=0.4, on_step=steps, stop=Never())
    return {
        "loss": result.loss, "tokens": result.tokens, "drawn": list(result.drawn),
        "losses": [row["loss"] for row in steps.rows],
    }  # fmt: skip


def whole(value: torch.Tensor) -> torch.Tensor:
    return (value.full_tensor() if isinstance(value, DTensor) else value).clone()


def state(trainer: TitanTrainer) -> dict[str, torch.Tensor]:
    flat = trainer._engine.optimizers.state_dict()
    return {n: whole(v) for n, v in flat.items() if n.startswith("state.")}


def train(name: str, folder: Path) -> None:
    """Two phases with an evaluation between; what a single rank left is resumed by the others."""
    warnings.simplefilter("error")
    config = config_of(name)
    init_ranks(config)
    ranks = Ranks()
    trainer = TitanTrainer(config, TinyCorpus(), ranks=ranks)
    out: dict[str, Any] = {}
    tensors: dict[str, Any] = {"theta0": dict(trainer.tensors())}
    out["first"] = phase(trainer, IDS)
    tensors["theta1"], tensors["state1"] = dict(trainer.tensors()), state(trainer)
    evaluated = trainer.evaluate()
    out["held out"] = (evaluated.loss, evaluated.tokens)
    trainer.save_inner(folder / f"{name}.inner")
    out["second"] = phase(trainer, MORE)
    tensors["theta2"] = dict(trainer.tensors())
    kinds = {str(p.dtype) for p in trainer._model.parameters()}
    out["masters"] = sorted(kinds)
    if name != origin(name):
        trainer.load_inner(folder / f"{origin(name)}.inner")
        tensors["loaded"] = state(trainer)
    if ranks.rank == 0:
        (folder / f"{name}.json").write_text(json.dumps(out))
        torch.save(tensors, folder / f"{name}.pt")
    trainer.close()


def broken(folder: Path) -> None:
    """Rank 1 alone meets a bug in the middle of a phase, while the others are in a collective."""
    config = config_of("single-hsdp4")
    with (folder / "broken.err").open("a") as errors:
        os.dup2(errors.fileno(), 2)
    init_ranks(config)
    ranks = Ranks()

    class Torn(TinyCorpus):
        def windows(self, ids: Any) -> Any:
            if 7 in ids:  # rank 1's, in the second step
                raise KeyError("a bug on rank 1")
            return super().windows(ids)

    phase(TitanTrainer(config, Torn(), ranks=ranks), IDS)
    (folder / f"ended{ranks.rank}").touch()  # must not come to this


def odd(folder: Path, num: int) -> None:
    """See `odd_shapes`; on `num` ranks."""
    config = config_of("muon")
    parallel = config.parallel.model_copy(update={"ranks": num})
    init_ranks(config.model_copy(update={"parallel": parallel}))
    odd_shapes.run(folder, config.optim)


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        install("cpu")
    tiny_config()  # once for all ranks
    for name in sys.argv[2:]:
        if name == "broken":
            codes = in_ranks(4, lambda: broken(folder))
            (folder / "broken.json").write_text(json.dumps(codes))
            continue
        if name == "odd":
            for num in (1, 2, 3, 8):
                codes = in_ranks(num, lambda num=num: odd(folder, num))  # type: ignore[misc]
                assert not any(codes), (num, codes)
            continue
        codes = in_ranks(LAYOUTS[name][0], lambda name=name: train(name, folder))
        assert not any(codes), (name, codes)


if __name__ == "__main__":
    main()
