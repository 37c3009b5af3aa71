"""`python -m pww.smoke.rank RUN [json]`: one rank of a smoke test; `pww.smoke` starts it.

All checks, cheapest first, in an order in which each may rely on those before it: one that is wrong
ends the test unless the next ones can do without it. Exit codes: 0 all is right, 1 it is not.
"""

import logging
import os
import sys
import traceback
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pww import log as pww_log
from pww.clock import Clock, SystemClock
from pww.config.load import read_config
from pww.config.schema import Config
from pww.engine import opened
from pww.errors import PwwError
from pww.launcher.process import die_with_parent
from pww.smoke.book import Book, Check, note_fault
from pww.smoke.watch import Watch
from pww.trainer import place as places

if TYPE_CHECKING:
    from pww.replica.groups import Allocation
    from pww.trainer.api import Live

log = logging.getLogger("pww.smoke")


@dataclass(frozen=True, slots=True)
class Test:
    """One rank's smoke test."""

    config: Config
    run: Path
    book: Book
    watch: Watch
    clock: Clock


def main(argv: list[str]) -> int:
    """Runs one rank and returns its exit code."""
    if not argv or not Path(argv[0], "config.yaml").is_file():
        print("usage: python -m pww.smoke.rank RUN   (pww.smoke makes it)", file=sys.stderr)
        return 2
    if "RANK" in os.environ:
        die_with_parent()
    run, clock = Path(argv[0]).resolve(), SystemClock()
    name = "first"
    try:
        rank = places.found(os.environ).rank
        name = str(rank)
        pww_log.setup(rank=rank)
        config = read_config(run / "config.yaml")
        watch = Watch(run, rank, clock=clock)
    except PwwError as fault:
        note_fault(run, name, str(fault))
        print(fault, file=sys.stderr)
        return 1
    try:
        with ExitStack() as stack:
            book = Book(run, as_json=argv[1:] == ["json"])
            passed = _all(Test(config, run, book, watch, clock), stack)
        return 0 if passed else 1
    except KeyboardInterrupt:
        note_fault(run, name, f"{watch.stage}: stopped by hand")
    except (PwwError, OSError) as fault:
        note_fault(run, name, f"{watch.stage}: rank {rank}: {fault}")
        log.error("%s", fault)
    except Exception as bug:
        # Whatever it is, the machine did not do what was asked of it, and the verdict says so
        note_fault(run, name, f"{watch.stage}: rank {rank}: {type(bug).__name__}: {bug}")
        traceback.print_exc()
    finally:
        watch.close()
    return 1


def _all(test: Test, stack: ExitStack) -> bool:
    """Collective: every check; whether all of them were right."""
    from pww.replica.groups import join_ranks
    from pww.smoke import disk, hardware, reduce, replicas
    from pww.smoke.tell import gathered

    config, watch, clock = test.config, test.watch, test.clock
    place = join_ranks(config)
    stack.callback(place.ranks.close)
    across = place.across

    watch.now("devices")
    seats = hardware.seats(gathered(across, hardware.seat(config, rank=across.place)))
    good = _note(test, across.place, hardware.devices(config.site, seats))
    good = _note(test, across.place, hardware.cores(config.site, seats)) and good
    watch.now("all-reduce")
    found, group = reduce.right(place, config)
    right = _note(test, across.place, found)
    good = good and right
    if group is not None and right:
        watch.now("bandwidth")
        num_nodes = len({one.host for one in seats})
        found = [reduce.bandwidth(config, group, across, num_nodes=num_nodes, clock=clock)]
        good = _note(test, across.place, found) and good
    watch.now("replicas")
    right = right and _note(test, across.place, replicas.checks(config, place, clock=clock))
    watch.now("checkpoint")
    good = _note(test, across.place, [disk.check(test.run, across)]) and good and right
    if right:  # a wrong sum trains to nothing, and a wrong group waits for ever
        good = _trained(test, place, stack) and good
    else:
        _note(test, across.place, [Check("training", "unchecked", "since collectives are wrong")])
    watch.now("ending")
    passed = place.everyone.local(lambda: test.book.close())
    return good and passed


def _trained(test: Test, place: "Allocation", stack: ExitStack) -> bool:
    """Collective: the configured model, its data and its outer loop, for a few steps."""
    from pww.allocate import collective_of
    from pww.smoke import phases

    config, watch = test.config, test.watch
    watch.now("data")
    facts, make = opened(config, place)
    watch.now("engine")
    trainer = make()
    stack.callback(trainer.close)
    collective = None
    if config.diloco.replicas > 1:
        collective = collective_of(config, place, trainer, clock=test.clock)
    watch.now("training")
    found = phases.checks(
        config, cast("Live", trainer), collective, place, num_windows=facts.num_windows,
        clock=test.clock,
    )  # fmt: skip
    return _note(test, place.across.place, found)


def _note(test: Test, rank: int, checks: Iterable[Check]) -> bool:
    """Takes in what every rank found alike; whether nothing is wrong."""
    found = list(checks)
    if rank == 0:
        test.book.add(found)
    return all(check.state != "wrong" for check in found)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # gloo's threads can abort an interpreter that tears itself down
