"""kill -9 of the central at random points of three-site runs: `python tests/bench/kills.py`.

    kills=N      how often (default 1000)
    seed=N       of the first run (default 0)
    starts=whole every start of the central is `python -m pww.central` from its command line on

After each kill the ledger is audited; after each run theta is held to a NumPy replay and to the
same merges without a kill. Prints one JSON line a figure.
"""

import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "programs"), str(TESTS), str(TESTS.parent)]

from births import Nursery  # noqa: E402
from conftest import NursedProject  # noqa: E402
from figures import figure, machine  # noqa: E402
from kills import Killer, Nursed  # noqa: E402

from pww.demo import free_ports  # noqa: E402

KILLS_A_RUN = 25


def copy_of_project(folder: Path) -> NursedProject:
    """The tree that a user would clone."""
    for name in ("conf", "pww", "launch"):
        shutil.copytree(TESTS.parent / name, folder / name)
    shutil.copy(TESTS.parent / "pyproject.toml", folder)
    (folder / "outputs").mkdir()
    env = {**os.environ, "PYTHONPATH": str(folder), "PYTHONUNBUFFERED": "1"}
    return NursedProject(folder, env, nursery=Nursery(folder, env))


def main(words: list[str]) -> None:
    """Kills, checks, tells."""
    asked = {"kills": "1000", "seed": "0", "starts": "short"}
    for word in words:
        key, _, value = word.partition("=")
        if key not in asked:
            sys.exit(f"{word}: the words are {', '.join(f'{key}=' for key in asked)}")
        asked[key] = value
    wanted, seed, survived = int(asked["kills"]), int(asked["seed"]), 0
    hits, starts_s, runs = Counter[str](), list[float](), 0
    if os.fsync.__module__ != "posix":
        sys.exit("fsync was replaced: what survives a kill would mean nothing")
    on = {"fsync": "on", "tls": False, "credentials": False}  # all on loopback: what is asked here
    print(json.dumps({"machine": machine(), **on}), flush=True)  # is what a kill leaves behind
    with tempfile.TemporaryDirectory() as folder:
        project = copy_of_project(Path(folder))
        try:
            while survived < wanted:
                leases, flower = free_ports(2)
                federation = Nursed(project, (leases, flower), "data.max_windows=2400")
                killer = Killer(federation, seed + runs, whole_starts=asked["starts"] == "whole")
                told = killer.run(min(KILLS_A_RUN, wanted - survived))
                federation.check()
                federation.clear()
                survived, hits, runs = survived + told.killed, hits + told.hits, runs + 1
                starts_s += told.start_s
                print(f"# {survived} kills in {runs} runs: {dict(hits)}", flush=True)
        finally:
            project.nursery.close()
    figure("kills_survived", survived, "kills", "1000, with 0 blocks lost or doubled")
    figure("kills_restart_s", float(np.median(starts_s)), "s", "median to serving; no goal")


if __name__ == "__main__":
    main(sys.argv[1:])
