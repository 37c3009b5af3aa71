"""Text into windows of token ids: tokenised once, cached, then read by id. No torch."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pww.data.corpus import Corpus, prepare
    from pww.data.manifest import Manifest, read_manifest

__all__ = ["Corpus", "Manifest", "prepare", "read_manifest"]


def __getattr__(name: str) -> Any:
    """The names above when they are asked for: `python -m pww.data --help` needs no tokenizers."""
    if name in ("Corpus", "prepare"):
        from pww.data import corpus

        return getattr(corpus, name)
    if name in ("Manifest", "read_manifest"):
        from pww.data import manifest

        return getattr(manifest, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
