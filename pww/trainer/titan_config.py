"""Our Config as torchtitan's, and what has to hold before. Call `titan_cpu.install` in between."""

from typing import TYPE_CHECKING, Any, assert_never

from pww.config.schema import AdamW, Config, ImageModel, LanguageModel, Muon, Parallel, Sgd
from pww.errors import ConfigError, DataError

if TYPE_CHECKING:
    from pww.trainer.titan_data import Manifest
    from pww.trainer.titan_engine import Engine

DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


def check(config: Config, manifest: "Manifest", *, num_ranks: int) -> None:
    """Refuses what torchtitan would refuse with a traceback; `config.check` has seen the rest.

    Raises:
        ConfigError: all faults of the configuration.
        DataError: the corpus is not one for this model.
    """
    faults = []
    if config.parallel.ranks != num_ranks:
        faults.append(
            f"parallel.ranks={config.parallel.ranks}, but {num_ranks} processes started: start as "
            "many"
        )
    model = config.model
    if faults:
        raise ConfigError(faults)
    if manifest.window_tokens != model.seq_len + 1:
        raise DataError(
            f"corpus {config.data.name} has windows of {manifest.window_tokens} tokens, but "
            f"model.seq_len={model.seq_len} needs {model.seq_len + 1}: tokenise it for this length"
        )
    if manifest.num_held_out < 1:
        raise DataError(
            f"corpus {config.data.name} has no held-out window (data.held_out="
            f"{config.text.held_out} of {manifest.num_windows} windows): raise data.held_out or "
            "use more text"
        )


def language_model(config: Config) -> LanguageModel:
    """The model; that it is one of these was checked with the configuration."""
    assert not isinstance(config.model, ImageModel)
    return config.model


def adaptive(config: Config) -> AdamW | Muon:
    """The optimiser, likewise."""
    assert not isinstance(config.optim, Sgd)
    return config.optim


def shard_ranks(parallel: Parallel, *, num_ranks: int) -> int:
    """How many ranks share one copy of the model; ddp is FSDP2 whose shards are whole copies.

    torch's own DDP was rejected: it has no mixed precision with fp32 masters, nor sharded state.
    """
    match parallel.kind:
        case "single" | "ddp":
            return 1
        case "fsdp":
            return num_ranks
        case "hsdp":
            return parallel.shard_ranks
        case _:
            assert_never(parallel.kind)


def _recomputed(parallel: Parallel) -> Any:
    """Torchtitan's policy of what the backward pass computes again. No layer draws at random."""
    from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC

    match parallel.activation_checkpoint:
        case "none":
            return None
        case "selective":
            return SelectiveAC.Config(preserve_rng_state=False)
        case "full":
            return FullAC.Config(preserve_rng_state=False)
        case _:
            assert_never(parallel.activation_checkpoint)


def engine_config(
    config: Config, *, padded_vocab: int, num_ranks: int, scratch: str
) -> "Engine.Config":
    """Torchtitan's configuration of this run, everything it would write or log switched off.

    Gradients are clipped to `optim.clip_norm`, master weights are fp32 whatever `model.dtype` is,
    and the seed is the same on every rank (`titan_model.whole` cuts what all ranks draw).
    """
    from torchtitan.components.checkpointer import CheckpointManager
    from torchtitan.components.loss import CrossEntropyLoss
    from torchtitan.config import (
        CommConfig,
        CompileConfig,
        DebugConfig,
        ParallelismConfig,
        TrainingConfig,
    )

    from pww.trainer.titan_data import NoTokenizer
    from pww.trainer.titan_engine import Engine, NoMetrics
    from pww.trainer.titan_micro import MicroLoader
    from pww.trainer.titan_model import model_spec
    from pww.trainer.titan_optim import optimizers
    from pww.trainer.titan_schedule import PhaseLRs

    optim = config.optim
    shard = shard_ranks(config.parallel, num_ranks=num_ranks)
    return Engine.Config(
        model_spec=model_spec(
            language_model(config),
            padded_vocab=padded_vocab,
            gloo=config.site.device == "cpu",
            seed=config.seed,
        ),
        hf_assets_path=scratch,
        dump_folder=scratch,
        tokenizer=NoTokenizer.Config(),
        dataloader=MicroLoader.Config(accumulate=optim.accumulate),
        metrics=NoMetrics.Config(disable_color_printing=True),
        loss=CrossEntropyLoss.Config(global_vocab_size=padded_vocab),
        lr_scheduler=PhaseLRs.Config(),
        optimizer=optimizers(adaptive(config)),
        training=TrainingConfig(
            local_batch_size=optim.batch_windows // (num_ranks * optim.accumulate),
            global_batch_size=optim.batch_windows,
            seq_len=config.model.seq_len,
            max_norm=optim.clip_norm,
            dtype="float32",
            mixed_precision_param=DTYPES[config.model.dtype],
            mixed_precision_reduce="float32",
            disable_cuda_graphs=True,
        ),
        # The only backend whose FSDP works with torch 2.13 and reports the true loss on 2 ranks.
        parallelism=ParallelismConfig(
            spmd_backend="partial_dtensor",
            data_parallel_replicate_degree=num_ranks // shard,
            data_parallel_shard_degree=shard,
        ),
        checkpoint=CheckpointManager.Config(enable=False, initial_load_model_only=False),
        activation_checkpoint=_recomputed(config.parallel),
        compile=CompileConfig(enable=config.parallel.compile),
        debug=DebugConfig(seed=config.seed, enable_structured_logging=False),
        comm=CommConfig(trace_buf_size=0),
    )
