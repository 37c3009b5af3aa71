"""collective_ranks.py FOLDER: the collective outer step on real gloo groups of 2, 4, 6 and 8 ranks.

Every rank runs every scenario of `SCENARIOS` that fits its number of ranks, and writes what failed
to FOLDER/RANKS-RANK.json: {scenario: "" or a traceback}; FOLDER/codes.json has the exit codes, and
those of ranks of which one is killed. One process for all: it imports torch once.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import collective_cases as cases
import collective_laws as laws
import torch
import torch._dynamo  # DDP and FSDP2 would import it once in every rank
import torch.distributed as dist
from allocation import Here, one_value
from forked import in_ranks

SCENARIOS: dict[str, tuple[tuple[int, ...], Callable[[], None]]] = {
    **{
        f"{law.__name__}-{k}-{kind}": ((4,), lambda law=law, k=k, kind=kind: law(k, kind))
        for law in (laws.synchronous, laws.fedavg, laws.nesterov_is_torchs, cases.sharded_norms)
        for k in (1, 2, 4)
        for kind in ("ddp", "fsdp")
    },
    **{
        f"synchronous-{k}-fsdp-of-8": ((8,), lambda k=k: laws.synchronous(k, "fsdp"))
        for k in (1, 2)
    },
    **{
        f"{law.__name__}-{k}-hsdp": ((4 * k,), lambda law=law, k=k: law(k, "hsdp"))
        for law in (laws.synchronous, laws.nesterov_is_torchs, cases.sharded_norms)
        for k in (1, 2)
    },
    **{  # 7 rows over the 3 ranks of a replica
        f"{law.__name__}-fsdp-of-6": ((6,), lambda law=law: law(2, "fsdp"))
        for law in (laws.nesterov_is_torchs, cases.sharded_norms)
    },
    **{f"norms-{k}": ((4,), lambda k=k: cases.norms(k)) for k in (2, 4)},
    **{f"pinned_bits-{c}": ((4,), lambda c=c: laws.pinned_bits(c)) for c in ("none", "fp32")},
    **{
        f"feedback-{kind}-{c}": ((4,), lambda kind=kind, c=c: cases.feedback(kind, c))
        for kind in ("ddp", "fsdp")
        for c in ("int8", "topk-64-b8")
    },
    "by_hand": ((4,), laws.by_hand),
    "bf16_adds_up": ((2,), laws.bf16_adds_up),
    "buffers": ((4,), cases.buffers_are_their_own_kind),
    "resnet_buffers": ((4,), cases.resnet_buffers),
    "buffers-of-2": ((2,), cases.buffers_are_their_own_kind),
    "one_start": ((4,), cases.one_start),
    "rounded_once": ((4,), cases.buffers_are_rounded_once),
    "left_out": ((4,), cases.left_out),
    "partial_flush": ((4,), cases.partial_flush),
    "unlike": ((4,), cases.unlike),
}


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, found = dist.get_rank(), {}
    for name, (sizes, work) in SCENARIOS.items():
        if dist.get_world_size() in sizes:
            try:
                work()
                found[name] = ""
            except Exception:
                found[name] = traceback.format_exc()
                break  # the others may wait for what this rank left undone
    (folder / f"{dist.get_world_size()}-{rank}.json").write_text(json.dumps(found))


def killed() -> None:
    """A replica dies in the middle of its phase: the others end with a sentence."""
    dist.init_process_group("gloo")
    here = Here(2)
    collective = here.collective(one_value(1.0))
    if here.rank == here.world - 1:
        os._exit(9)
    while True:
        collective.step(1)


if __name__ == "__main__":
    where = Path(sys.argv[1])
    codes = {str(ranks): in_ranks(ranks, lambda: main(where)) for ranks in (2, 4, 6, 8)}
    codes["killed"] = in_ranks(4, killed)
    (where / "codes.json").write_text(json.dumps(codes))
