"""Ranks as forks of one process: it imports torch once, and every group of ranks starts at once."""

import os
import socket
import sys
import traceback
from collections.abc import Callable


def in_ranks(num: int, work: Callable[[], object]) -> list[int]:
    """Runs `work` in `num` ranks; their exit codes. Nothing in this process may have threads."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    children = []
    for rank in range(num):
        child = os.fork()
        if child == 0:
            os.environ |= {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            }  # fmt: skip
            code = 1
            try:
                work()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
