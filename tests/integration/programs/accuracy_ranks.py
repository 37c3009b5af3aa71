"""accuracy_ranks.py FOLDER: 10,000 images scored on 1, 2, 3 and 7 ranks; FOLDER/N-RANK.json."""

import json
import sys
from pathlib import Path

import torch
import torch._dynamo  # DDP and FSDP2 would import it once in every rank
import torch.distributed as dist
from forked import in_ranks
from torch import nn
from torch.distributed.fsdp import fully_shard

from pww.trainer.accuracy import score
from pww.trainer.ranks import Ranks

FOLDER = Path(sys.argv[1])


def work() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    ranks, draw = Ranks(), torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (10_000, 1, 4, 4), dtype=torch.uint8, generator=draw)
    labels = torch.randint(0, 10, (10_000,), dtype=torch.uint8, generator=draw)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 10))
    expected = int((model(pixels.float() / 255).argmax(1) == labels).sum())
    if ranks.world > 1:
        fully_shard(model)
    found = score(model, pixels, labels, batch=256, ranks=ranks, prepare=lambda p: p.float() / 255)
    assert model.training
    few = score(model, pixels[:2], labels[:2], batch=4, ranks=ranks, prepare=lambda p: p / 255)
    row = [found.right, found.count, found.accuracy, found.loss, expected, few.count]
    (FOLDER / f"{ranks.world}-{ranks.rank}.json").write_text(json.dumps(row))


for num in (1, 2, 3, 7):
    assert in_ranks(num, work) == [0] * num
