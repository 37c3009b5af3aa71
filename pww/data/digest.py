"""The digest of a corpus: over its documents in order, put together from those of its pieces.

Plain SHA-256 over the text would have to read it in one row. Here each document's SHA-256 `h_i` is
a coefficient of a polynomial, `H = sum h_i x^(n-1-i) mod p`, so that a run of documents followed by
another one of `m` has `H_ab = H_a x^m + H_b`: workers take pieces, and where pieces end leaves no
trace. It tells texts apart that differ by mistake; that nobody can forge two is not its claim.
"""

import hashlib
from dataclasses import dataclass

PRIME = 2**255 - 19
BASE = int.from_bytes(hashlib.sha256(b"pww corpus digest").digest(), "little") % PRIME


@dataclass(frozen=True, slots=True)
class DocumentsDigest:
    """Of `num` documents that follow each other."""

    num: int = 0
    value: int = 0

    def then(self, text: bytes) -> "DocumentsDigest":
        """With one more document."""
        own = int.from_bytes(hashlib.sha256(text).digest(), "little")
        return DocumentsDigest(self.num + 1, (self.value * BASE + own) % PRIME)

    def join(self, later: "DocumentsDigest") -> "DocumentsDigest":
        """Of these documents and then the `later` ones."""
        shifted = self.value * pow(BASE, later.num, PRIME)
        return DocumentsDigest(self.num + later.num, (shifted + later.value) % PRIME)

    @property
    def hex(self) -> str:
        """64 characters."""
        return hashlib.sha256(f"{self.num} {self.value:x}".encode()).hexdigest()
