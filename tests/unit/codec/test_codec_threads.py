"""Jobs in threads: all of them, one kernel thread each, faults told, the caller's state back."""

import threading

import pytest
import torch

from pww.codec import codec_named
from pww.codec.threads import FEW, spread
from pww.errors import NotFiniteError


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def run(number, *, threads=True):
    seen = []
    jobs = [
        lambda n=n: seen.append((n, torch.get_num_threads(), threading.current_thread().name))
        for n in range(number)
    ]
    spread(jobs, threads=threads)
    return seen


@pytest.mark.parametrize("number", [0, 1, FEW, 2 * FEW - 1, 2 * FEW, 50])
def test_every_job_runs_once_with_one_kernel_thread(number):
    seen = run(number)
    assert sorted(n for n, _, _ in seen) == list(range(number))
    assert {threads for _, threads, _ in seen} <= {1}
    assert torch.get_num_threads() == 2
    names = {name for _, _, name in seen}
    assert any(name.startswith("codec") for name in names) == (number >= 2 * FEW)


def test_a_caller_of_one_thread_starts_none_and_a_device_keeps_its_own():
    torch.set_num_threads(1)
    assert {name for _, _, name in run(50)} == {threading.current_thread().name}
    torch.set_num_threads(2)
    assert {threads for _, threads, _ in run(50, threads=False)} == {2}


def test_a_fault_in_a_thread_is_the_callers_and_its_threads_come_back():
    x = torch.zeros(40 * 64 * 4096)
    x[-1] = torch.nan
    with pytest.raises(NotFiniteError, match="1 of 10485760 values are nan or inf"):
        codec_named("int8").encode(x)
    assert torch.get_num_threads() == 2
    assert not [t for t in threading.enumerate() if t.name.startswith("codec")]


def test_in_inference_mode_and_out_of_it():
    x = torch.randn(10 * 64 * 4096)
    codec = codec_named("int4")
    with torch.inference_mode():
        inside = codec.encode(x)
        assert torch.equal(codec.decode(inside, x.shape), codec.decode(codec.encode(x), x.shape))
    outside = codec.decode(codec.encode(x.requires_grad_()), tuple(x.shape))
    assert not outside.requires_grad
    outside.add_(1)  # an ordinary tensor: no trace of the mode
    assert torch.equal(codec.encode(x)["codes"], inside["codes"])
