"""The deterministic simulation by hand.

    python tests/sim/run.py seed=123 trace=1      one seed again, event by event
    python tests/sim/run.py seeds=10000 jobs=2 [first=0]

`strict=0`: draws of phases that are dropped may break the law of who may draw; `log=1`: pww's log.

The last line is JSON: seeds, failures, faults injected by kind. The exit code is 1 if a seed
failed, or if a kind of fault never happened.
"""

import json
import logging
import signal
import sys
import time
from collections import Counter
from functools import partial
from multiprocessing import get_context
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

from simulation.scenario import KINDS, Outcome, run_seed  # noqa: E402

SHOWN = 20


def _quiet() -> None:
    logging.disable(logging.CRITICAL)


def _block(seeds: tuple[int, int], *, strict: bool) -> list[Outcome]:
    return [run_seed(seed, strict=strict) for seed in range(*seeds)]


def many(first: int, number: int, *, jobs: int, strict: bool) -> int:
    """A range of seeds on some processes."""
    start_s = time.perf_counter()
    faults: Counter[str] = Counter()
    failed: list[Outcome] = []
    totals: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    size = max(1, min(50, number // (2 * jobs)))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and so its processes end with it
    blocks = [(i, min(i + size, first + number)) for i in range(first, first + number, size)]
    with get_context("spawn").Pool(jobs, initializer=_quiet) as pool:
        for outcomes in pool.imap_unordered(partial(_block, strict=strict), blocks):
            for one in outcomes:
                faults.update(one.faults)
                seen.update(one.seen)
                totals.update(draws=one.draws, rounds=one.rounds, audits=one.audits)
                if one.fault:
                    failed.append(one)
                    if len(failed) <= SHOWN:
                        print(f"FAILED {one.fault}", flush=True)
    took_s = time.perf_counter() - start_s
    missing = [kind for kind in KINDS if not faults[kind]]
    row = {
        "seeds": number, "first": first, "failures": len(failed),
        "failed": sorted(one.seed for one in failed)[:SHOWN],
        "seeds_per_minute": round(60 * number / took_s), "seconds": round(took_s, 1),
        **totals, "leases": dict(sorted(seen.items())), "missing": missing,
        "faults": {kind: faults[kind] for kind in KINDS},
    }  # fmt: skip
    print(json.dumps(row))
    return 1 if failed or missing else 0


def one(seed: int, *, trace: bool, strict: bool) -> int:
    """One seed, with its events."""
    outcome = run_seed(seed, trace=print if trace else None, strict=strict)
    if outcome.fault:
        if not trace:
            print("\n".join(outcome.last))
        print(f"FAILED {outcome.fault}")
    row = {"seed": seed, "digest": outcome.digest, "rounds": outcome.rounds,
           "simulated_s": round(outcome.simulated_s, 1), "events": outcome.events,
           "draws": outcome.draws, "leases": outcome.seen, "faults": outcome.faults}  # fmt: skip
    print(json.dumps(row))
    return 1 if outcome.fault else 0


def main(words: list[str]) -> int:
    """`key=value` words."""
    given = {word.partition("=")[0]: word.partition("=")[2] for word in words}
    unknown = given.keys() - {"seed", "seeds", "jobs", "first", "trace", "log", "strict"}
    if unknown:
        print(f"unknown {', '.join(sorted(unknown))}\n{__doc__}", file=sys.stderr)
        return 2
    if given.get("log") == "1":
        logging.basicConfig(level=logging.INFO, format="    %(name)s: %(message)s")
    else:
        _quiet()
    strict = given.get("strict") != "0"
    if "seed" in given:
        return one(int(given["seed"]), trace=given.get("trace") == "1", strict=strict)
    return many(int(given.get("first", 0)), int(given.get("seeds", 100)),
                jobs=int(given.get("jobs", 1)), strict=strict)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
