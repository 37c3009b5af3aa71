"""payload_ranks.py FOLDER CODEC…: two deltas of a model sharded over 1, 2 and 3 ranks.

FOLDER has theta.safetensors, and inner0 and inner1 beside it; FOLDER/rows<ranks>.json tells the
digests.
"""

import json
import os
import sys
import warnings
from hashlib import sha256
from pathlib import Path

import torch
from forked import in_ranks
from tiny import TinyCorpus, tiny_config

from pww.codec import codec_named
from pww.replica.outbox import Outbox
from pww.trainer.api import PhaseResult
from pww.trainer.ranks import Ranks, init_ranks
from pww.trainer.titan import TitanTrainer
from pww.trainer.titan_cpu import install
from pww.transport.exchange import Theta
from pww.wire import Lease, Span, Verdict


def main(folder: Path, codecs: list[str]) -> None:
    world = int(os.environ.get("WORLD_SIZE", "1"))
    over = {"parallel.ranks": world, "parallel.kind": "fsdp", "optim.batch_windows": 6}
    config = tiny_config(over)
    init_ranks(config)
    ranks = Ranks()
    trainer = TitanTrainer(config, TinyCorpus(), ranks=ranks)
    theta = Theta(0, folder / "theta.safetensors", "f" * 64, None, 0)
    result = PhaseResult(1, 8, 1.0, 1.0, (1,), stopped=False)
    lease = Lease(id=1, replica="s/a", span=Span(0, 1), watermark=1, ttl_s=9.0)
    rows: dict[str, list[tuple[str, str]]] = {}
    for name in codecs:
        run = folder / f"{name}-{world}"
        outbox = Outbox(run, ranks=ranks, codec=codec_named(name), keep=2, feedback=True)
        for phase in range(2):
            trainer.load(folder / f"inner{phase}.safetensors")
            entry = outbox.put(
                trainer, theta, result, lease, run="a" * 32, partial=False, held_out=None
            )
            if ranks.rank == 0:
                left = sha256(entry.residual.read_bytes()).hexdigest()
                rows.setdefault(name, []).append((entry.offer.payload.digest, left))
            outbox.settle(Verdict(delta=entry.offer.delta, outcome="merged", round=1))
        outbox.close()
    if ranks.rank == 0:
        (folder / f"rows{world}.json").write_text(json.dumps(rows))
    trainer.close()


if __name__ == "__main__":
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        install("cpu")
    tiny_config()  # once for all ranks
    for num in (1, 2, 3):
        ended = in_ranks(num, lambda: main(Path(sys.argv[1]), sys.argv[2:]))
        assert not any(ended), f"{num} ranks ended with {ended}"
