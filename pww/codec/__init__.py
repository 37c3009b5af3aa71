"""Codecs: tensor to parts and back, each with a stated error bound and byte count."""

from pww.codec.base import Codec, Layout, Shape
from pww.codec.finite import is_finite, require_finite
from pww.codec.registry import KINDS, Kind, codec_named, get_codec

__all__ = [
    "Codec", "KINDS", "Kind", "Layout", "Shape", "codec_named", "get_codec", "is_finite",
    "require_finite",
]  # fmt: skip
