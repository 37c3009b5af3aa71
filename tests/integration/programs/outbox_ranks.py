"""outbox_ranks.py FOLDER LAST [full], alone or under torchrun: a phase through an outbox with bf16.

A process life of a replica on so many ranks: it opens the outbox, puts a delta of a matrix that is
sharded over them, and learns that it was merged. LAST is the replica's last merged delta, "none" on
the first life. Rank 0 writes FOLDER/row.json. With `full` rank 0's device has no room to encode it,
and each rank writes what it was told, FOLDER/told-RANK.
"""

import json
import os
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[2] / "programs"))

from full_device import FullDevice
from tiny import tiny_config

from pww.codec import codec_named
from pww.errors import CheckpointError
from pww.replica.outbox import Outbox
from pww.trainer.api import PhaseResult
from pww.trainer.ranks import Ranks, init_ranks
from pww.transport.exchange import Theta
from pww.transport.payload import PayloadReader, write_theta
from pww.transport.tensorfile import TensorReader
from pww.wire import Lease, Span, Verdict

SHAPES = {"w": (4, 6)}
STEP = 0.3


class Sharded:
    """Each rank moves its rows; a gather is a collective, and only rank 0 gets the whole."""

    step = 1

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        rows = 4 // ranks.world
        first = ranks.rank * rows
        whole = torch.arange(24.0).reshape(4, 6)
        self.rows = -STEP * (whole + 1)[first : first + rows]

    def shapes(self):
        return SHAPES

    def tensors(self):
        parts = [torch.empty_like(self.rows) for _ in range(self.ranks.world)]
        dist.all_gather(parts, self.rows, group=self.ranks.group)
        yield "w", torch.cat(parts) if self.ranks.rank == 0 else torch.empty(0)

    def save_inner(self, folder: Path) -> None:
        if self.ranks.rank == 0:
            folder.mkdir()


def main(folder: Path, last: str, *, full: bool) -> None:
    init_ranks(tiny_config({"parallel.ranks": int(os.environ.get("WORLD_SIZE", "1"))}))
    ranks = Ranks()
    outbox = Outbox(folder, ranks=ranks, codec=codec_named("bf16"), keep=2, feedback=True)
    dropped = outbox.rejoin("" if last == "none" else last)
    theta = Theta(0, folder / "theta0.safetensors", "f" * 64, None, 0)
    if ranks.rank == 0:
        write_theta(theta.path, [("w", torch.zeros(4, 6))], SHAPES)
    result = PhaseResult(1, 8, 1.0, 1.0, (1,), stopped=False)
    lease = Lease(id=1, replica="s/a", span=Span(0, 1), watermark=1, ttl_s=9.0)
    put = partial(
        outbox.put, Sharded(ranks), theta, result, lease, run="a" * 32, partial=False, held_out=None
    )
    if full:
        room = ranks.world  # that of the gather
        with FullDevice("empty_like", room=room) if ranks.rank == 0 else nullcontext():
            try:
                put()
            except CheckpointError as fault:
                (folder / f"told-{ranks.rank}").write_text(str(fault))
        ranks.close()
        return
    entry = put()
    if ranks.rank == 0:
        with PayloadReader(entry.payload, entry.offer.payload) as payload:
            sent = payload.tensor("w").tolist()
    outbox.settle(Verdict(delta=entry.offer.delta, outcome="merged", round=1))
    if ranks.rank == 0:
        assert outbox.residual is not None
        with TensorReader(outbox.residual.residual) as reader:
            left = reader.get("w").tolist()
        row = {
            "delta": entry.offer.delta, "sent": sent, "left": left, "ranks": ranks.world,
            "dropped": dropped is not None,
        }  # fmt: skip
        (folder / "row.json").write_text(json.dumps(row))
    outbox.close()
    ranks.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], full="full" in sys.argv[3:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
