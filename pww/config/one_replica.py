"""The configuration as one replica of an allocation sees it: its own ranks, and nobody else's."""

from pww.config.schema import Config


def of_one(config: Config) -> Config:
    """`config` with the ranks of one of `diloco.replicas` equal blocks.

    Where one copy is sharded over all ranks it is sharded over those. As it is if the blocks would
    not be equal, which `check.replicas_fit` refuses.
    """
    parallel, k = config.parallel, config.diloco.replicas
    if k == 1 or parallel.ranks % k:
        return config
    ranks = parallel.ranks // k
    shard = ranks if parallel.kind == "fsdp" else parallel.shard_ranks
    mine = parallel.model_copy(update={"ranks": ranks, "shard_ranks": shard})
    return config.model_copy(update={"parallel": mine})
