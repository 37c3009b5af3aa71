"""A run that goes on with another number of ranks: what follows from it, and what does not.

Theta, momentum and inner states are read by any number of ranks; the number of replicas is the
run's own. Which ranks share a copy (`parallel.kind`) may change with their number: one rank has no
other to share with.
"""

from collections.abc import Sequence
from typing import Any

from pww.config.check import check
from pww.config.schema import Config
from pww.errors import ConfigError

NUMBERS = ("parallel.ranks", "site.num_nodes", "site.ranks_per_node")
"""Keys that ask for it, each by its own name: of a whole group, such as `parallel=ddp`, the number
may be no more than a default.
"""
OF_SITE = ("num_nodes", "ranks", "ranks_per_node", "node_cores")
OF_QUEUE = ("gpus_per_node", "node_gpus")
OF_PARALLEL = ("kind", "ranks", "shard_ranks")
FOLLOWING = (
    *(f"parallel.{key}" for key in OF_PARALLEL), *(f"site.{key}" for key in OF_SITE),
    *(f"site.queue.{key}" for key in OF_QUEUE),
)  # fmt: skip
"""Keys that may differ once one of those was given."""


def is_asked(given: frozenset[str]) -> bool:
    """Whether the command line names a number of ranks."""
    return any(name in given for name in NUMBERS)


def resized(stored: Config, config: Config, *, shown: str) -> Config:
    """`stored` on the ranks of `config`, with all that is derived from their number.

    Raises:
        ConfigError: it does not fit the rest of the run, or the site is another one.
    """
    if config.site.name != stored.site.name:
        raise ConfigError(
            [
                f"site={config.site.name}: the run in {shown} is one of site={stored.site.name}, "
                "whose nodes another number of ranks is counted by; give that site too"
            ]
        )
    parallel = stored.parallel.model_copy(update=_of(config.parallel, OF_PARALLEL))
    queue, asked = stored.site.queue, config.site.queue
    if queue.kind == "slurm" and asked.kind == "slurm":
        queue = queue.model_copy(update=_of(asked, OF_QUEUE))
    site = stored.site.model_copy(update={"queue": queue, **_of(config.site, OF_SITE)})
    found = stored.model_copy(update={"parallel": parallel, "site": site})
    if faults := check(found):
        raise ConfigError(faults)
    return found


def _of(section: object, keys: Sequence[str]) -> dict[str, Any]:
    return {key: getattr(section, key) for key in keys}
