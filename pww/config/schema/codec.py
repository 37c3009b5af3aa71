"""How a delta becomes bytes: one class a kind, each with the name that payloads bear."""

from typing import Annotated, Literal

from pydantic import Field

from pww.config.schema.base import Section


class ExactCodec(Section):
    """A delta becomes bytes that hold all of it."""

    kind: Literal["fp32"]

    @property
    def feedback(self) -> bool:
        """Nothing is lost, so nothing is fed back."""
        return False

    @property
    def name(self) -> str:
        """What payloads are marked with."""
        return self.kind


class LossyCodec(Section):
    """A delta becomes fewer bytes, which hold nearly all of it."""

    kind: Literal["bf16", "fp16", "int8", "int4"]
    feedback: bool  # what encoding loses is kept and goes out with the next delta

    @property
    def name(self) -> str:
        """What payloads are marked with."""
        return self.kind


class CoarseCodec(Section):
    """Two bits of every value, or one: made up for by feedback only."""

    kind: Literal["int2", "sign"]
    feedback: bool
    force: bool  # do without feedback all the same

    @property
    def name(self) -> str:
        """What payloads are marked with."""
        return self.kind


Keep = Annotated[int, Field(ge=1, le=4096)]
"""Values of 4096 that are sent."""


class TopKCodec(Section):
    """The largest values of every 4096."""

    kind: Literal["topk"]
    keep: Keep
    value_bits: Literal[2, 4, 8, 16]
    feedback: bool
    force: bool  # few bits without feedback, or feedback under a long outer step, all the same

    @property
    def name(self) -> str:
        """What payloads are marked with."""
        return f"{self.kind}-{self.keep}-b{self.value_bits}"


class RandomKCodec(Section):
    """Values drawn from every 4096."""

    kind: Literal["randomk"]
    keep: Keep
    feedback: bool  # then they are not scaled up: feedback wants what is shorter than the delta
    force: bool  # feedback under a long outer step all the same

    @property
    def name(self) -> str:
        """What payloads are marked with."""
        return f"{self.kind}-{self.keep}" + ("-raw" if self.feedback else "")


class DctCodec(Section):
    """The largest cosine coefficients of every 4096 values."""

    kind: Literal["dct"]
    keep: Keep
    feedback: bool
    force: bool  # few bits without feedback, or feedback under a long outer step, all the same

    @property
    def name(self) -> str:
        """What payloads are marked with."""
        return f"dct2-{self.keep}"


class DitherCodec(Section):
    """Whole steps, rounded after a shift that is taken back."""

    kind: Literal["dither"]
    bits: Literal[4, 8]
    feedback: bool

    @property
    def name(self) -> str:
        """What payloads are marked with."""
        return f"{self.kind}-{self.bits}"


Codec = Annotated[
    ExactCodec | LossyCodec | CoarseCodec | TopKCodec | RandomKCodec | DctCodec | DitherCodec,
    Field(discriminator="kind"),
]
"""How a delta becomes bytes."""
