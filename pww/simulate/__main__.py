"""`python -m pww.simulate replicas=4 kill=1 late=1`: leases under load, killed and audited.

    replicas=N   replicas a, b, c … as processes of their own, the last one 8 times as fast as
                 the first (default 4, at most 16)
    kill=N       so many get SIGKILL in the middle of a lease and do not come back: their leases
                 lapse, and what they drew for them is drawn again by others (default 1)
    late=N       so many of them join when a part of the blocks is in (default 1)
    blocks=N     blocks of the corpus (default 1000)
    seed=N       seed of their order (default 0)

A real central (leases over HTTP, deltas over Flower, ledger, merge) and the real client; the work
on a window is a sleep. The last line is JSON, counted from what the processes say they drew,
joined with the deltas that were merged. Exit code 0 only if every block is in exactly once and the
ledger's own audit agrees.
"""

import json
import signal
import sys
import threading
from typing import Any

import httpx

from pww import log as pww_log
from pww.central.coverage import coverage
from pww.clock import SystemClock
from pww.config import paths
from pww.config.load import compose
from pww.demo import free_name, free_ports
from pww.errors import PwwError, StateError, Stopped
from pww.simulate.family import CENTRAL, Family
from pww.simulate.plan import BATCH_WINDOWS, BLOCK_WINDOWS, Plan, parse, write_manifest

GIVE_UP_S = 600.0
POLL_S = 0.2
QUICK = (
    "diloco.phase=balanced", f"darl.block_windows={BLOCK_WINDOWS}", "darl.heartbeat_s=0.5",
    "darl.detect_s=3", "darl.ttl_floor_s=4", "darl.restore_grace_s=4",
    "transport.poll_s=0.1", "transport.retry_first_s=0.1", "transport.retry_max_s=0.5",
    "metrics.wandb.mode=disabled", f"optim.batch_windows={BATCH_WINDOWS}", "site=local",
    "evaluation.every_rounds=1000000", "central.linger_s=1",
)  # fmt: skip
"""Settings that suit a run of half a minute."""


def main(argv: list[str]) -> int:
    """Runs the simulation and returns its exit code."""
    if any(word in ("-h", "--help") for word in argv):
        print(__doc__)
        return 0
    pww_log.setup()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    try:
        return _run(parse(argv), stop)
    except PwwError as fault:
        print(fault, file=sys.stderr)
        return fault.exit_code


def _run(plan: Plan, stop: threading.Event) -> int:
    ports = free_ports(2)
    url = f"http://127.0.0.1:{ports[0]}"
    root = compose(()).run.root
    name = free_name(paths.PROJECT / root, "simulate")
    manifest = f"{root}/{name}/manifest.json"
    steps = plan.phase_blocks * BLOCK_WINDOWS // BATCH_WINDOWS
    config = compose(
        (*QUICK, f"run.name={name}", f"darl.seed={plan.seed}", f"diloco.inner_steps={steps}",
         f"central.url={url}", f"central.port={ports[0]}", f"central.aggregator_port={ports[1]}",
            f"central.blob_port={ports[1]}",
         f"central.manifest={manifest}")
    )  # fmt: skip
    family = Family(plan, paths.PROJECT / root / name, config)
    family.root.mkdir(parents=True)
    # the last block is short
    write_manifest(paths.PROJECT / manifest, num_windows=plan.blocks * BLOCK_WINDOWS - 1)
    print(f"simulate: {plan.blocks} blocks, central on {url}; all is in {paths.shown(family.root)}")
    try:
        _watch(family, url, stop)
    except EOFError:  # Ctrl-C reaches the forkserver too, which may just be starting a process
        raise Stopped("simulate: stopped; its processes are ended") from None
    finally:
        family.end()
    result = coverage(family.root / CENTRAL, {f"local/{n}": family.root / n for n in plan.names})
    print(result.render())
    slowest, fastest = (result.shares[f"local/{name}"] for name in (plan.names[0], plan.names[-1]))
    if plan.replicas > 1:
        print(f"  the fastest has {fastest / max(1, slowest):.1f} times the slowest's share")
    row = {
        "blocks": result.blocks, "covered": result.covered, "duplicates": result.duplicates,
        "missing": result.missing,
    }  # fmt: skip
    print(json.dumps(row))
    return 0 if result.ok else 1


def _watch(family: Family, url: str, stop: threading.Event) -> None:
    """Starts, kills and waits until all have ended by themselves.

    Raises:
        StateError: one of them failed, it takes too long, or it was over before a kill or a join.
        Stopped: `stop` was set.
    """
    plan, clock = family.plan, SystemClock()
    waiting = {who: 0.2 + 0.4 * i / plan.kill for i, who in enumerate(plan.killed)}
    absent = {who: 0.1 + 0.4 * i / plan.late for i, who in enumerate(plan.latecomers)}
    began_s, said = clock.monotonic(), -1
    for who in (CENTRAL, *(name for name in plan.names if name not in absent)):
        family.start(who)
    while True:
        codes = family.codes()
        status = _status(url) or {"round": 0, "coverage": {"committed": 0}}
        took_s, done = clock.monotonic() - began_s, status["coverage"]["committed"]
        if status["round"] > said >= 0 or (status["round"] and said < 0):
            print(
                f"simulate: {took_s:.0f} s, round {status['round']}: {done} of {plan.blocks} "
                "blocks are in", flush=True,
            )  # fmt: skip
            said = status["round"]
        for who in [who for who, at in absent.items() if done >= at * plan.blocks]:
            del absent[who]
            family.start(who)
            print(f"simulate: {who} joins", flush=True)
        for who in [who for who, at in waiting.items() if done >= at * plan.blocks]:
            if where := family.inside_a_phase(who):
                del waiting[who]
                family.kill(who)
                print(f"simulate: killed {who} in the middle of a phase, at {where}", flush=True)
        ended = {who: code for who, code in codes.items() if code is not None}
        failed = [who for who, code in ended.items() if code and not family.was_killed(who)]
        if failed:
            raise StateError(f"{', '.join(failed)} ended with an error:\n{family.tails(failed)}")
        if len(ended) == len(codes) and not absent:
            break
        if took_s > GIVE_UP_S:
            raise StateError(f"not done after {GIVE_UP_S:.0f} s:\n{family.tails(list(codes))}")
        if clock.wait(stop, POLL_S):
            raise Stopped("simulate: stopped; its processes are ended")
    if waiting or absent:
        raise StateError(
            f"all blocks were in before {', '.join((*waiting, *absent))} could be killed or join: "
            "give it more blocks"
        )


def _status(url: str) -> dict[str, Any] | None:
    """What the central says of the run; None while it does not answer."""
    try:
        reply = httpx.get(f"{url}/status", timeout=2.0)
        status = reply.json() if reply.status_code == 200 else None
    except (httpx.HTTPError, ValueError):
        return None
    assert status is None or isinstance(status, dict)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
