"""trainer_ranks.py SCENARIO FOLDER, alone or under torchrun: writes FOLDER/rank<r>.json."""

import json
import os
import resource
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tiny import Never, Steps, TinyCorpus, tiny_config

from pww.errors import DataError, PayloadError, PwwError, Refused, Stopped
from pww.trainer import ranks as ranks_module
from pww.trainer.ranks import Ranks, init_ranks
from pww.trainer.titan import TitanTrainer

IDS = [5, 900, 17, 3, 44, 8, 999, 0, 61, 12, 7]  # with 4 a step, rank 1's last share is 1 of 2
MORE = [101, 102, 103, 104, 105]  # its last step has nothing for rank 1


def save(trainer: TitanTrainer, path: Path, ranks: Ranks) -> None:
    tensors = {n: t for n, t in trainer.tensors() if ranks.rank == 0}
    if ranks.rank == 0:
        save_file(tensors, path)


def phase(trainer: TitanTrainer, ids: list[int], stop: Any = None) -> dict[str, Any]:
    steps = Steps()
    result = trainer.run(ids, progress=0.05, progress_end=0.3, on_step=steps, stop=stop or Never())
    row = {name: getattr(result, name) for name in ("steps", "tokens", "loss", "stopped")}
    return {**row, "drawn": list(result.drawn), "rows": steps.rows, "step": trainer.step}


def evaluated(trainer: TitanTrainer) -> tuple[float, int]:
    result = trainer.evaluate()
    return result.loss, result.tokens


def raised(call: Callable[[], object]) -> tuple[str, str, str]:
    """What `call` raises: its type, text and refusal code."""
    try:
        call()
    except (PwwError, KeyError) as fault:
        return type(fault).__name__, str(fault), getattr(fault, "code", "")
    return "nothing", "", ""


@contextmanager
def full_disk(here: bool) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if here:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class AskLater:
    """Asks the last rank alone to stop at the boundary before step 3; the ranks must agree."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks, self._left = ranks, 2

    def agreed(self) -> bool:
        if self._left == 0 and self._ranks.rank == self._ranks.world - 1:
            self._ranks.ask_to_stop()
        self._left -= 1
        return self._ranks.agreed()


class HeldOutIsGone(TinyCorpus):
    """Cannot be read on rank 1."""

    def held_out(self, ids: Any) -> Any:
        if torch.distributed.get_rank() == 1:
            raise DataError("held-out shard 3 is gone")
        return super().held_out(ids)


def train(trainer: TitanTrainer, folder: Path, ranks: Ranks) -> dict[str, Any]:
    """Two phases with everything around them."""
    out: dict[str, Any] = {"layout": {n: list(s) for n, s in trainer.shapes().items()}}
    trainer.expect(IDS)
    out["expected"] = trainer._corpus.expected
    save(trainer, folder / "theta0.safetensors", ranks)
    out["before"] = evaluated(trainer)
    out["first"] = phase(trainer, IDS)
    out["after"] = evaluated(trainer)
    save(trainer, folder / "theta1.safetensors", ranks)
    trainer.save_inner(folder / "inner")
    out["second"] = phase(trainer, MORE)
    save(trainer, folder / "theta2.safetensors", ranks)
    out["single"] = phase(trainer, [77])  # rank 1 has no window at all
    out["stop"] = phase(trainer, IDS * 4, AskLater(ranks))
    return out


def go_on(trainer: TitanTrainer, folder: Path, ranks: Ranks) -> dict[str, Any]:
    """Resumes from what another number of ranks left in FOLDER."""
    trainer.load(folder / "theta1.safetensors")
    trainer.load_inner(folder / "inner")
    out = {"step": trainer.step, "second": phase(trainer, MORE)}
    save(trainer, folder / "resumed.safetensors", ranks)
    return out


def faults(trainer: TitanTrainer, folder: Path, ranks: Ranks) -> dict[str, Any]:
    """Theta bit for bit; every fault reaches both ranks and the trainer goes on."""
    out: dict[str, Any] = {}
    theta = {
        name: torch.randn(shape, generator=torch.Generator().manual_seed(i))
        for i, (name, shape) in enumerate(trainer.shapes().items())
    }
    theta["norm.weight"][0] = -0.0
    paths = {name: folder / f"{name}.safetensors" for name in ("good", "short", "torn", "got")}
    if ranks.rank == 0:
        save_file(theta, paths["good"])
        save_file({n: t for n, t in theta.items() if n != "norm.weight"}, paths["short"])
        paths["torn"].write_bytes(paths["good"].read_bytes()[:-1])
    out["short"] = raised(lambda: trainer.load(paths["short"]))
    out["torn"] = raised(lambda: trainer.load(paths["torn"]))
    out["absent"] = raised(lambda: trainer.load(folder / "absent"))
    phase(trainer, IDS)
    trainer.evaluate()
    trainer.load(paths["good"])
    save(trainer, paths["got"], ranks)
    if ranks.rank == 0:
        got = load_file(paths["got"])
        same = [
            torch.equal(got[n].view(torch.int32), t.view(torch.int32)) for n, t in theta.items()
        ]
        out["same"] = all(same) and list(trainer.shapes()) == list(theta)
    with full_disk(ranks.rank == 1):
        out["full"] = raised(lambda: trainer.save_inner(folder / "full"))
    out["full is complete"] = (folder / "full" / "inner.json").exists()
    out["no state"] = raised(lambda: trainer.load_inner(folder / "nowhere"))
    whole, trainer._corpus = trainer._corpus, HeldOutIsGone()
    out["evaluate"] = raised(trainer.evaluate)
    trainer._corpus = whole
    trainer.save_inner(folder / "inner")
    trainer.load_inner(folder / "inner")
    out["goes on"] = phase(trainer, IDS)["steps"]
    return out


def share(ranks: Ranks) -> dict[str, Any]:
    """Ranks alone: values, faults, stops; what all do while rank 0 works."""
    lock = threading.Lock()
    told, heard = threading.Event(), []

    def meanwhile() -> None:
        heard.append(ranks.local(lambda: "rank 0 works"))
        told.set()

    def refuse() -> None:
        raise Refused("the run is over", code="closed")

    def bug() -> None:
        raise KeyError("a bug")

    def ask_rank_1() -> None:
        if ranks.rank == 1:
            ranks.ask_to_stop()

    out: dict[str, Any] = {
        "value": ranks.share(lambda: {"from": ranks.rank}),
        "waited": ranks.share(lambda: told.wait(60), meanwhile=meanwhile),
        "heard": heard,
        "refused": raised(lambda: ranks.share(refuse)),
        "bug": raised(lambda: ranks.share(bug)),
        "unsendable": raised(lambda: ranks.share(lambda: lock)),
        "gather": ranks.gather(ranks.rank + 10),
        "fault": raised(
            lambda: ranks.agree_on_fault(PayloadError("torn on 1") if ranks.rank == 1 else None)
        ),
        "no fault": raised(lambda: ranks.agree_on_fault(None)),
        "before": ranks.agreed(),
    }
    ask_rank_1()
    try:
        ranks.share(lambda: threading.Event().wait(60))
    except Stopped as stopped:
        out["stopped"] = str(stopped)
    out["after"] = ranks.agreed()
    return out


def main() -> None:
    warnings.simplefilter("error")
    scenario, folder = sys.argv[1], Path(sys.argv[2])
    world = int(os.environ.get("WORLD_SIZE", "1"))
    config = tiny_config({"parallel.ranks": world, "parallel.kind": "fsdp"})
    init_ranks(config)
    ranks = Ranks()
    if scenario == "alone" and ranks.rank == 1:
        ranks_module.CLOSE_S = 1.0
        ranks.close()
        (folder / "rank1.json").write_text("{}")
        raise SystemExit(7)
    if scenario == "alone":
        while not ranks.agreed():  # rank 1 never comes
            pass
    trainer = TitanTrainer(config, TinyCorpus(), ranks=ranks)
    out = {"train": train, "go_on": go_on, "faults": faults}[scenario](trainer, folder, ranks)
    if scenario == "faults":
        out |= share(ranks)  # last: it ends in a stop
    trainer.close()
    (folder / f"rank{ranks.rank}.json").write_text(json.dumps(out))


if __name__ == "__main__":
    main()
