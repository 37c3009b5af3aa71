"""Forks pww's programs from one process that has imported everything: a start costs no imports.

    python nursery.py       then a JSON object a line on standard input:
    {"argv": ["-m", "pww.central", WORD…] or [PROGRAM.py, WORD…], "out": FILE, "err": FILE,
     "env": {…}}            the two files may be one
    {"argv": ["central", FOLDER, ROLE…], …}     the central of that run folder, by its frozen
                                                configuration, with these roles (none: as frozen)

Each is run as `python ARGV` would run it, in a process and a session of its own; nothing but the
imports is shared, and a central that is started by its folder does not compose its configuration
again. Answers `{"pid": …}`, and `{"pid": …, "code": …}` when it has ended (minus the signal's
number if one ended it). All end with the nursery, which ends with its standard input.
"""

import atexit
import importlib
import json
import os
import runpy
import select
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import NoReturn

from pww.launcher.process import die_with_parent

LOADED = (
    "torch.distributed", "hydra._internal.hydra", "pww.central.service", "pww.central.merging",
    "pww.central.coordinating", "pww.central.final", "pww.central.replay",
    "pww.codec", "pww.config.prepare", "pww.connect", "pww.data", "pww.federation.fleet",
    "pww.metrics", "pww.replica.federated", "pww.replica.loop", "pww.replica.outbox",
    "pww.replica.report", "pww.trainer.ranks", "pww.transport.blob",
    "pww.transport.payload", "pww.worker", "rich.live", "safetensors.torch", "wandb",
)  # fmt: skip


def birth(argv: list[str], out: str, err: str, env: dict[str, str]) -> NoReturn:
    """What a newborn does: it becomes that program, and ends as Python ends.

    But for the teardown of all that was imported, which touches every page that it shares.
    """
    os.setsid()
    die_with_parent()
    os.close(signal.set_wakeup_fd(-1))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for name, target in ((out, 1), (err, 2)):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), target)
    os.environ.update(env)
    code: object = 0
    try:
        become(argv)
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    if isinstance(code, str):
        print(code, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def become(argv: list[str]) -> None:
    """Runs it in this process."""
    if argv[0] == "-m":
        sys.argv, sys.path[0] = argv[1:], os.getcwd()
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    elif argv[0] == "central":
        from pww.central.__main__ import _start
        from pww.config.load import read_config

        config = read_config(Path(argv[1]) / "config.yaml")
        roles = tuple(argv[2:]) or config.central.roles
        central = config.central.model_copy(update={"roles": roles})
        code = _start(config.model_copy(update={"central": central}))
        sys.stdout.flush()
        os._exit(code)  # as its own last line does
    else:
        sys.argv, sys.path[0] = argv, str(Path(argv[0]).parent)
        runpy.run_path(argv[0], run_name="__main__")


def main() -> NoReturn:
    """Serves until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in LOADED:
        importlib.import_module(name)
    assert threading.active_count() == 1, "a fork would lose the other threads"
    ended, bell = os.pipe()
    os.set_blocking(bell, False)
    signal.set_wakeup_fd(bell)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    print(json.dumps({"ready": True}), flush=True)
    living = 0
    pending = b""
    while True:
        ready = select.select([0, ended], [], [])[0]
        if ended in ready:
            os.read(ended, 4096)
        if 0 in ready:
            piece = os.read(0, 65536)
            if not piece:
                os._exit(0)  # what it has imported need not be torn down
            *lines, pending = (pending + piece).split(b"\n")
            for line in lines:
                pid = os.fork()
                if pid == 0:
                    birth(**json.loads(line))
                living += 1
                print(json.dumps({"pid": pid}), flush=True)
        while living:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            living -= 1
            code = os.waitstatus_to_exitcode(status)
            print(json.dumps({"pid": pid, "code": code}), flush=True)


if __name__ == "__main__":
    main()
