"""What every group is made of: the base class and the types of its values."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

# In pydantic's (Rust) patterns `$` is the very end: a trailing newline does not match.
Name = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z0-9][a-z0-9_.-]{0,31}$"),
    Field(description="1 to 32 of a-z 0-9 . _ -, starting with a letter or digit"),
]
Positive = Annotated[int, Field(ge=1)]
Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
"""Of a running average; at 1 it would never move."""
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Section(BaseModel):
    """Base of every group: immutable, closed, no coercion, finite numbers only."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
