"""Corpora on every rank: rank 0 finds or makes them, the others open the folders that it names."""

from collections.abc import Callable, Mapping
from pathlib import Path

from pww.data import Corpus
from pww.errors import DataError, PwwError
from pww.trainer.ranks import Ranks


def on_every_rank(
    ranks: Ranks, make: Callable[[], Mapping[str, Corpus]], *, cache: str
) -> Mapping[str, Corpus]:
    """Collective: what `make` gives on rank 0, by name, opened on every rank.

    To find a corpus its raw text is hashed: that is done once, and only where rank 0 is need the
    text be.

    Raises:
        DataError: on every rank, if rank 0 cannot make one, or another cannot open it; the message
            names `cache`, the setting that says where they lie.
        Stopped: a stop was agreed meanwhile.
    """
    made: list[Mapping[str, Corpus]] = []

    def folders() -> dict[str, str]:  # plain text: they may be ranks of several replicas
        made.append(make())
        return {name: str(one.folder.absolute()) for name, one in made[0].items()}

    told = ranks.share(folders)
    opened, fault = (made[0] if made else {}), None
    if not made:
        try:
            opened = {
                name: _opened(Path(folder), ranks.rank, cache) for name, folder in told.items()
            }
        except PwwError as wrong:
            fault = wrong
    ranks.agree_on_fault(fault)
    return opened


def _opened(folder: Path, rank: int, cache: str) -> Corpus:
    if not folder.is_dir():
        raise DataError(
            f"rank {rank} does not see {folder}, the tokenised corpus of rank 0; set data.cache "
            f"(now {cache}) to a folder that all nodes of the replica share"
        )
    return Corpus(folder)
