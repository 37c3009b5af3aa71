"""theta(0): the seed's file, checked, becomes the first generation bit for bit, with momentum 0."""

from pathlib import Path

import torch

from pww.central.generations import Generation, Generations, name_of
from pww.codec import require_finite
from pww.errors import PayloadError, Refused
from pww.transport.payload import EXACT, verify
from pww.transport.tensorfile import TensorReader, tensors
from pww.wire import Digest, PayloadInfo, Seed, model_digest


def write_theta0(
    generations: Generations, path: Path, *, info: PayloadInfo, model: Digest
) -> Generation:
    """Writes generation 0 from a plain fp32 tensor file, in the file's own order.

    Raises:
        PayloadError: it is not what `info` and `model` say, not fp32, not finite, or holds nothing.
        OSError: it could not be written.
    """
    if info.codec != EXACT:
        raise PayloadError(f"theta(0) comes as {info.codec}; only {EXACT} is exact: send that")
    with TensorReader(path) as reader:
        verify(reader, info, what="theta(0)")
        shapes = {name: reader.shape(name) for name in reader.names}
        if not shapes or model_digest(shapes) != model:
            raise PayloadError(
                f"theta(0) holds {len(shapes)} tensors of model {model_digest(shapes)}, its sender "
                f"registered model {model}: start the site anew"
            )
        with generations.draft(0, shapes) as draft:
            for name, theta in tensors(reader):
                if theta.dtype != torch.float32:
                    raise PayloadError(f"theta(0): tensor {name} is {theta.dtype}, not fp32")
                try:
                    require_finite(theta)
                except PayloadError as fault:
                    raise PayloadError(f"theta(0): tensor {name}: {fault}") from fault
                draft.add(name, theta=theta, momentum=torch.zeros_like(theta))
    return generations.open(name_of(0))


def require_ours(seed: Seed, *, run: str, model: str) -> None:
    """Lets a seed pass that is for `run` and of `model` ("" if the run has none yet).

    Raises:
        Refused: it is not.
    """
    if seed.run != run:
        raise Refused(
            f"theta(0) is for run {seed.run}, this central serves run {run}: start the site anew, "
            "or point central.url at the right central",
            code="wrong_run",
        )
    if model and seed.model != model:
        raise Refused(
            f"theta(0) is of model {seed.model}, this run trains model {model}: start the site "
            "with the model settings of the run, or a new run",
            code="wrong_model",
        )
