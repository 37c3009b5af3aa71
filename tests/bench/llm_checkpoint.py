"""How long a checkpoint keeps training waiting: written before the next phase, or beside it.

A Qwen3 of 43 M parameters on one rank: an fp32 delta of 173 MB and twice as much optimiser state.
Both ways take turns. `python tests/bench/llm_checkpoint.py [disk=FOLDER] [rounds=5]`.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from figures import figure, machine
from llm_trainer import Corpus, Never

from pww.codec import codec_named
from pww.config.load import compose
from pww.lease.span import Span
from pww.trainer.titan_cpu import install
from pww.transport.exchange import Theta
from pww.wire import Lease, Verdict

WORDS = (
    "parallel=single", "site.cores_per_rank=2", "model.dim=512", "model.num_layers=8",
    "model.num_heads=8", "model.num_kv_heads=8", "model.head_dim=64", "model.hidden_dim=2048",
    "model.seq_len=64", "optim.batch_windows=2", "model.tie_embeddings=false",
    "diloco.inner_steps=8",
)  # fmt: skip


def checkpoint_s(disk: Path, *, rounds: int) -> None:
    """Prints what the trainer waits for, both ways, and how long the files take beside it."""
    from pww.replica.outbox import Outbox
    from pww.trainer.ranks import Ranks, init_ranks
    from pww.trainer.titan import TitanTrainer
    from pww.transport.payload import write_theta

    os.environ.setdefault("LOCAL_RANK", "0")
    config = compose(WORDS)
    install("cpu")
    init_ranks(config)
    ranks = Ranks()
    trainer = TitanTrainer(config, Corpus(config.model.seq_len), ranks=ranks)
    with tempfile.TemporaryDirectory(dir=disk) as name:
        folder = Path(name)
        path = folder / "theta.safetensors"
        write_theta(path, trainer.tensors(), trainer.shapes())
        theta = Theta(0, path, "f" * 64, None, 0)
        result = trainer.run(
            range(4), progress=0.3, progress_end=0.4, on_step=lambda **row: None, stop=Never()
        )
        outbox = Outbox(folder / "run", ranks=ranks, codec=codec_named("fp32"), keep=2)
        lease = Lease(id=0, replica="local/a", span=Span(0, 2), watermark=22, ttl_s=9.0)
        took: dict[str, list[float]] = {"before": [], "beside": [], "written": []}
        for turn in range(-2, 2 * rounds):  # the first of each warms up
            beside, start = bool(turn % 2), time.perf_counter()
            entry = outbox.put(
                trainer, theta, result, lease, run="a" * 32, partial=False, held_out=None,
                beside=beside,
            )  # fmt: skip
            waited = time.perf_counter() - start
            outbox.saved()
            if turn >= 0:
                took["beside" if beside else "before"].append(waited)
            if turn >= 0 and beside:
                took["written"].append(time.perf_counter() - start)
            outbox.settle(Verdict(delta=entry.offer.delta, outcome="merged", round=1))
        outbox.close()
    print(json.dumps(took), flush=True)
    num = sum(tensor.numel() for _, tensor in trainer.tensors())
    trainer.close()
    before, beside_s = statistics.median(took["before"]), statistics.median(took["beside"])
    figure("checkpoint_s", before, f"s that a phase waits for, {num / 1e6:.0f} M parameters", "-")
    figure("checkpoint_beside_s", beside_s, "s, diloco.overlap=true", "-")
    figure("checkpoint_saved", 1 - beside_s / before, "of the time", "-")


if __name__ == "__main__":
    given = dict(word.partition("=")[::2] for word in sys.argv[1:])
    print(json.dumps({"machine": machine()}), flush=True)
    checkpoint_s(
        Path(given.get("disk", tempfile.gettempdir())), rounds=int(given.get("rounds", "5"))
    )
