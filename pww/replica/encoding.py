"""A phase's movement as a payload, with the residual that holds after it: rank 0's part of `put`.

Nothing here is collective but the gathers that `Differences` makes; the caller drains them.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from pww.codec import Codec
from pww.errors import CheckpointError, NotFiniteError
from pww.replica.differences import Differences, require_told
from pww.replica.entry import DELTA, NOTHING, RESIDUAL, cannot_write
from pww.replica.residual import Feedback
from pww.trainer.memory import no_room
from pww.transport.payload import write_payload
from pww.wire import PayloadInfo

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Encoded:
    """What the offer tells of the payload; norms are L2 over all parameters."""

    payload: PayloadInfo = NOTHING
    norm: float = 0.0
    drift: float = 0.0
    residual_norm: float = 0.0
    finite: bool = True


def encode(
    part: Path,
    final: Path,
    differences: Differences,
    shapes: Mapping[str, Sequence[int]],
    codec: Codec,
    *,
    loss: float,
    seed: str,
    before: Path | None,
    feedback: bool,
) -> Encoded:
    """Makes the folder `part`, and writes payload and next residual into it, not yet durable.

    A phase that is not finite leaves neither, and is told as such.

    Args:
        part: the folder, which is not there.
        final: its name once it is whole, for messages.
        differences: theta_outer - theta_inner.
        shapes: of all parameters, in order.
        codec: how the delta travels.
        loss: of the phase.
        seed: a text that is another for every payload; codecs that draw, draw by it.
        before: the residual in force, None if there is none.
        feedback: whether what the codec loses is kept for the next delta.

    Raises:
        CheckpointError: disk or device are full.
        PayloadError: theta on the disk, or the residual, is damaged or another model's.
    """
    after = part / RESIDUAL if feedback else None
    try:
        part.mkdir()
        require_told("loss", loss)
        with Feedback(shapes, before=before, after=after) as fed:
            payload = write_payload(
                part / DELTA, fed.carried(differences), shapes, codec, seed=seed,
                lost=fed.keep if feedback else None, synced=False,
            )  # fmt: skip
        require_told("norm", differences.norm)
        require_told("drift", differences.drift)
        require_told("residual", fed.norm)
    except NotFiniteError as why:
        log.error("delta of %s is not finite and will not be sent: %s", final.name, why)
        (part / DELTA).unlink(missing_ok=True)
        (part / RESIDUAL).unlink(missing_ok=True)
        return Encoded(finite=False)
    except OSError as why:
        raise cannot_write(final, why) from why
    except torch.OutOfMemoryError as why:
        # not raised here: the fault's frames hold tensors whose room the gathers to come need
        fault = CheckpointError(
            f"cannot encode {final}: {no_room(why)}. The checkpoints before it are intact, and its "
            "blocks are trained again: make room for the largest tensor of the model, up to three "
            f"times beside it, then go on with resume={final.parent.parent}"
        )
    else:
        return Encoded(payload, differences.norm, differences.drift, fed.norm)
    raise fault
