"""What a delta's way costs in memory: site to central to generation to site, each in a process.

    python streaming_memory.py FOLDER theta|site|central|update [mb=2048] [big_mb=256]

`theta` makes the file of a model of `mb` MB, one tensor of `big_mb` and many small ones; `site`
encodes a delta of it (int8, with feedback); `central` receives and merges that, with an int8
update; `update` is a site again, which applies it. In this order, over one folder. Prints the peak
of each above what it had after its imports, in MB.
"""

import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from pww.central.generations import Generations, name_of
from pww.central.merge import merge_finite
from pww.central.payload_store import PayloadStore
from pww.central.screening import StagedPayload, inspect, screen
from pww.codec import codec_named
from pww.config.load import compose
from pww.replica.differences import Differences
from pww.replica.residual import Feedback
from pww.transport.payload import write_payload, write_theta
from pww.transport.tensorfile import TensorReader, tensors
from pww.transport.update import apply_update
from pww.wire import PayloadInfo

SMALL = 1 << 20
"""Values of a small tensor, 4 MiB."""
INT8 = codec_named("int8")


def shapes_of(mb: int, big_mb: int) -> dict[str, tuple[int, ...]]:
    """One big tensor between many small ones."""
    count = (mb - big_mb) // 4
    small = {f"layer{i:04d}": (SMALL // 64, 64) for i in range(count)}
    return {"embedding": (big_mb << 12, 64), **small}


class Trainer:
    """`pww.trainer.api.Trainer`, as far as a delta is taken: a bit beside theta."""

    def __init__(self, theta: Path) -> None:
        self._theta = theta

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        with TensorReader(self._theta) as reader:
            for name, tensor in tensors(reader):
                yield name, tensor.mul_(1.001)


def theta(folder: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    generator = torch.Generator().manual_seed(1)
    made = ((name, torch.rand(shape, generator=generator)) for name, shape in shapes.items())
    write_theta(folder / "theta", made, shapes)


def site(folder: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    differences = Differences(Trainer(folder / "theta"), folder / "theta")  # type: ignore[arg-type]
    with Feedback(shapes, before=None, after=folder / "residual") as feedback:
        info = write_payload(
            folder / "delta", feedback.carried(differences), shapes, INT8, lost=feedback.keep
        )
    (folder / "delta.json").write_text(info.model_dump_json())


def central(folder: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    generations = Generations(folder / "generations")
    with generations.draft(0, shapes) as draft, TensorReader(folder / "theta") as reader:
        for name in reader.names:
            tensor = reader.get(name)
            draft.add(name, theta=tensor, momentum=tensor)
    info = PayloadInfo.model_validate_json((folder / "delta.json").read_text())
    path = PayloadStore(folder / "deltas").put("a" * 32, folder / "delta", info)
    staged = StagedPayload("a" * 32, "", "s/a", path, info, 10, 0, False)
    checked = inspect(path, info, shapes, hashed=False)
    with screen([staged], shapes, known={staged.delta: checked}) as screened:
        result, _ = merge_finite(
            generations.open(name_of(0)), screened, number=1, generations=generations,
            diloco=compose([]).diloco, down=INT8,
        )  # fmt: skip
    assert result is not None


def update(folder: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    made = Generations(folder / "generations").open(name_of(1))
    assert made.info.update is not None
    found = apply_update(folder / "theta", made.update, made.info.update, folder / "next")
    assert found == made.info.state_hash


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    place, role = Path(sys.argv[1]), sys.argv[2]
    asked = {"mb": 2048, "big_mb": 256} | {
        key: int(value) for key, _, value in (word.partition("=") for word in sys.argv[3:])
    }
    layout = shapes_of(asked["mb"], asked["big_mb"])
    INT8.decode(INT8.encode(torch.ones(SMALL)), (SMALL,))  # what threads and pools take
    before = peak_mb()
    {"theta": theta, "site": site, "central": central, "update": update}[role](place, layout)
    print(f"{peak_mb() - before:.0f}")
