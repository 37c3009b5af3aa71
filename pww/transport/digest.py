"""What a payload, theta or any other carried object is known by: BLAKE3, 256 bits in hex.

As with SHA-256 nobody can make two files of one digest, at two to three times the speed: every byte
of a model is hashed several times a round. Source: O'Connor et al., "BLAKE3", 2020.
"""

from typing import BinaryIO

from blake3 import blake3

from pww.transport.memory import aligned_buffer

CHUNK = 4 << 20
"""Bytes read and hashed together."""


def new_digest(data: bytes | bytearray | memoryview = b"") -> blake3:
    """A digest in the making: `update` it, then ask its `hexdigest`."""
    return blake3(data)


def file_digest(file: BinaryIO) -> str:
    """Of the rest of an open file."""
    digest, buffer = new_digest(), aligned_buffer(CHUNK)
    while count := file.readinto(buffer):  # type: ignore[attr-defined]
        digest.update(buffer[:count])
    return digest.hexdigest()
