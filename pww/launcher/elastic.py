"""`python -m pww.launcher.elastic RANKS RUN`: one machine's ranks under torch's elastic launcher.

torchrun itself ends with 1 and a traceback whatever its ranks ended with; here the exit code is
that of the first rank that failed, and its own last line is all that is said.
"""

import logging
import secrets
import signal
import sys
from collections.abc import Callable, Sequence

from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

STOP_S = 4
"""Ranks that were asked to stop have this many seconds."""


def launch(
    ranks: int,
    command: Sequence[str],
    *,
    failed: Callable[[int, int], None] = lambda rank, code: None,
) -> int:
    """Runs `command` as `ranks` ranks here; the exit code of the first that failed, or 0.

    `failed` is told which rank that was, and its code: one that was killed can say nothing itself.
    """
    # This process only waits; what there is to say, the ranks say
    logging.disable(logging.CRITICAL)
    # A terminal's Ctrl-C reaches the ranks themselves; SIGTERM alone is passed on to them
    signal.signal(signal.SIGINT, lambda *_: None)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=secrets.token_hex(8),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        signals_to_handle="SIGTERM",
        shutdown_timeout=STOP_S,
        logs_specs=DefaultLogsSpecs(),
    )
    try:
        elastic_launch(config, command[0])(*command[1:])
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        code = int(failure.exitcode)
        code = 128 - code if code < 0 else code
        failed(int(rank), code)
        return code
    except SignalException:
        return 128 + signal.SIGINT
    return 0


if __name__ == "__main__":
    sys.exit(launch(int(sys.argv[1]), [sys.executable, "-m", "pww.worker", sys.argv[2]]))
