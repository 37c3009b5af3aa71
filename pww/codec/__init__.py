"""Codecs: tensor to parts and back, each with a stated error bound and byte count."""

from pww.codec.base import Codec, Layout, Shape
from pww.codec.finite import is_finite, require_finite
from pww.codec.registry import FORMS, codec_named

__all__ = [
    "FORMS", "Codec", "Layout", "Shape", "codec_named", "is_finite",
    "require_finite",
]  # fmt: skip
