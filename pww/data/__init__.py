"""Text into windows of token ids: tokenised once, cached, then read by id. No torch."""

from pww.data.corpus import Corpus, prepare
from pww.data.manifest import Manifest, read_manifest

__all__ = ["Corpus", "Manifest", "prepare", "read_manifest"]
