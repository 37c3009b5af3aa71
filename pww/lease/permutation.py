"""A keyed bijection of `[0, n)` in O(1) memory: a Feistel network with cycle walking.

The order is defined by integers alone, never by a library's generator, so that two sites with
different versions of anything derive the same one. Version `feistel-1`, all arithmetic on
non-negative integers:

* Width: `w` is the smallest integer >= 1 with `4**w >= n`; a value has `2w` bits, a half has `w`.
* Keys: the ASCII texts `"pww feistel-1 <label> 0"` and `"pww feistel-1 <label> 1"` are hashed
  with SHA-256; the 64 bytes in that order are the eight round keys, 64 bits each, big-endian.
* Round function `F(k, x)`, modulo `2**64`: `z = x + k`; `z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9`;
  `z = (z ^ (z >> 27)) * 0x94D049BB133111EB`; `z = z ^ (z >> 31)`; the result is the low `w` bits
  of `z`.
* One pass over `x`: `L = x >> w`, `R = x mod 2**w`; for each key `k` in order: `L, R = R, L ^
  F(k, R)`; the result is `L * 2**w + R`.
* Cycle walking: passes are repeated until the result is below `n` (fewer than four on average,
  because the domain is less than four times `n`).

Source: Luby and Rackoff 1988 (Feistel), Black and Rogaway 2002 (cycle walking), Steele et al.
2014 (the finaliser of splitmix64).
"""

import hashlib

VERSION = "feistel-1"
NUM_ROUNDS = 8
_WORD = 2**64 - 1


class Permutation:
    """The bijection of `[0, num_items)` that `label` selects."""

    __slots__ = ("_keys", "_mask", "_width", "num_items")

    def __init__(self, num_items: int, *, label: str) -> None:
        self.num_items = num_items
        self._width = max(1, ((num_items - 1).bit_length() + 1) // 2)
        self._mask = (1 << self._width) - 1
        digest = b"".join(
            hashlib.sha256(f"pww {VERSION} {label} {half}".encode("ascii")).digest()
            for half in (0, 1)
        )
        self._keys = tuple(int.from_bytes(digest[8 * r : 8 * r + 8]) for r in range(NUM_ROUNDS))

    def __call__(self, index: int) -> int:
        """Where `index` goes."""
        self._check(index)
        value = index
        while True:
            left, right = value >> self._width, value & self._mask
            for key in self._keys:
                left, right = right, left ^ self._round(key, right)
            value = left << self._width | right
            if value < self.num_items:
                return value

    def inverse(self, image: int) -> int:
        """The index that goes to `image`."""
        self._check(image)
        value = image
        while True:
            left, right = value >> self._width, value & self._mask
            for key in reversed(self._keys):
                left, right = right ^ self._round(key, left), left
            value = left << self._width | right
            if value < self.num_items:
                return value

    def _round(self, key: int, half: int) -> int:
        z = (half + key) & _WORD
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _WORD
        z = (z ^ z >> 27) * 0x94D049BB133111EB & _WORD
        return (z ^ z >> 31) & self._mask

    def _check(self, value: int) -> None:
        if not 0 <= value < self.num_items:
            raise IndexError(f"{value} is outside [0, {self.num_items})")
