"""Local rank j takes accelerator j, or says why it cannot."""

import pytest
import torch

from pww.errors import TrainerError
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
