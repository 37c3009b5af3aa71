"""Jobs side by side, each in one thread from its first kernel to its last.

Torch would split every kernel among its threads and let them wait for each other at its end: with
kernels of 50 microseconds on a machine that does something else as well, most of the time is spent
waiting, and the waiting is done by spinning.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

FEW = 4
"""Jobs that are worth a thread: starting it takes as long as one of them."""


def spread(jobs: Sequence[Callable[[], None]], *, threads: bool) -> None:
    """Runs all jobs, on as many threads as torch would use here, or in this one.

    Raises:
        Exception: what a job raised; which one's, if several did, is not said.
    """
    if not threads:
        _all(jobs)
        return
    allowed = torch.get_num_threads()
    workers = min(allowed, len(jobs) // FEW)
    # for this thread, and for those that start meanwhile
    torch.set_num_threads(1)
    try:
        if workers < 2:
            _all(jobs)
            return
        with ThreadPoolExecutor(workers, thread_name_prefix="codec") as pool:
            shares = [pool.submit(_all, jobs[first::workers]) for first in range(workers)]
        for share in shares:
            share.result()
    finally:
        torch.set_num_threads(allowed)


def _all(jobs: Sequence[Callable[[], None]]) -> None:
    # A caller's inference mode does not reach new threads, and what was made in it may be filled
    # in it only; and nothing here is differentiated.
    with torch.inference_mode():
        for job in jobs:
            job()
