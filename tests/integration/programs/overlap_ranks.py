"""overlap_ranks.py FOLDER, one process a rank: a run to its end with `diloco.overlap`.

Torchtitan's engine on so many ranks, the books and the merge on rank 0. Rank 0 writes into FOLDER
what the weights were, one file each: `start-N` and `end-N` of phase N, `theta-N` at evaluation N.
"""

import os
import sys
import warnings
from pathlib import Path
from typing import Any, cast

from safetensors.torch import save_file
from tiny import SEQ_LEN, TinyCorpus, tiny_config

from pww.clock import SystemClock
from pww.codec import codec_named
from pww.connect import Ends, Start, connect
from pww.lease.space import BlockSpace
from pww.replica import loop
from pww.replica.durable import Durable
from pww.replica.outbox import Outbox
from pww.replica.plan import PhasePlan
from pww.replica.report import Report
from pww.trainer.ranks import Ranks, init_ranks
from pww.trainer.titan import TitanTrainer
from pww.transport.payload import write_theta
from pww.wire import model_digest

SPACE = BlockSpace(
    num_windows=40, block_windows=4, seed=3, epochs=1, window_tokens=SEQ_LEN + 1, corpus="c" * 64
)


class Watched(TitanTrainer):
    """Notes its weights where a phase begins and ends, and where they are evaluated."""

    phases = evaluations = 0

    def note(self, name: str) -> None:
        tensors = {n: t for n, t in self.tensors() if self._ranks.rank == 0}
        if self._ranks.rank == 0:
            save_file(tensors, folder / name)

    def run(self, *args: Any, **more: Any) -> Any:
        self.phases += 1
        self.note(f"start-{self.phases}")
        result = super().run(*args, **more)
        self.note(f"end-{self.phases}")
        return result

    def evaluate(self) -> Any:
        self.note(f"theta-{self.evaluations}")
        self.evaluations += 1
        return super().evaluate()


def main() -> None:
    warnings.simplefilter("error")
    world = int(os.environ.get("WORLD_SIZE", "1"))
    config = tiny_config(
        {
            "parallel.ranks": world, "parallel.kind": "fsdp", "darl.block_windows": 4,
            "diloco.inner_steps": 2, "site.name": "local",
        }
    )  # fmt: skip
    init_ranks(config)
    ranks, clock = Ranks(), SystemClock()
    trainer = Watched(config, TinyCorpus(), ranks=ranks)
    run = folder / "run"
    outbox = Outbox(run, ranks=ranks, codec=codec_named("fp32"), keep=2)
    seed = run / "theta0.safetensors"
    tensors = trainer.tensors()
    if ranks.rank == 0:
        write_theta(seed, tensors, trainer.shapes())
    for _ in tensors:
        pass
    start = Start(SPACE, model_digest(trainer.shapes()), seed, None)
    built: list[Ends] = []
    ranks.share(lambda: built.append(connect(config, run, start, clock=clock, stop=ranks.asked)))
    plan = PhasePlan.of(config, SPACE)
    report = Report(run, metrics=None, outbox=outbox, plan=plan, every_rounds=1, clock=clock)
    hand = Durable(
        cast("Any", built and built[0].session), cast("Any", built and built[0].exchange),
        outbox, report, plan=plan, ranks=ranks, clock=clock, overlap=True,
    )  # fmt: skip
    loop.run(hand, trainer, report, plan=plan)
    outbox.close()
    for ends in built:
        ends.close(())
    trainer.close()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
