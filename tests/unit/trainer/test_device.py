"""Local rank j takes accelerator j, or says why it cannot."""

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from pww.config.load import compose
from pww.errors import TrainerError
from pww.trainer import ranks
from pww.trainer.device import take


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A torch that sees four GPUs; which of them were taken."""
    taken: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    return taken


def test_its_own(four: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    for local in range(4):
        monkeypatch.setenv("LOCAL_RANK", str(local))
        take("cuda")
    assert four == [0, 1, 2, 3]


def test_there_is_none_for_it(four: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "4")
    with pytest.raises(TrainerError, match=r"^LOCAL_RANK=4, but this process sees 4 GPU\(s\): "):
        take("cuda")
    assert four == []


def test_a_cpu_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    take("cpu")


def test_no_accelerator_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(TrainerError, match=r"^site\.device=rocm, but torch .* sees no GPU"):
        take("rocm")


def test_a_rank_takes_it_before_it_meets_the_others(
    four: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever trains then finds it: what is on the device goes to the current one."""
    seen: list[list[int]] = []
    monkeypatch.setattr(ranks.dist, "init_process_group", lambda *_, **__: seen.append([*four]))
    monkeypatch.setenv("LOCAL_RANK", "3")
    config = compose(["site=slurm", "site.queue.partition=gpu", "site.ranks_per_node=4"])
    ranks.join(config, store=HashStore(), rank=3, world=4)
    assert seen == [[3]]
