"""`python -m pww.demo sites=2`: a central and sites on this machine, then an audit of that.

    sites=N     replicas a, b, c … that start at once (default 2)
    kill=1      the last of them is killed (SIGKILL) in the middle of a phase and does not come back
    late=1      one more joins after the first merges
    key=value   any override of the configuration, given to the central and to every site

The last line is JSON, counted from what the processes did: the windows that each replica says it
drew, by delta, joined with the deltas that were merged. Exit code 0 only if every block is in
exactly once.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pww import log as pww_log
from pww.clock import SystemClock
from pww.config import paths
from pww.config.load import compose
from pww.errors import ConfigError, PwwError, StateError, Stopped
from pww.launcher.process import die_with_parent
from pww.log import read_json_lines

QUICK = (
    "diloco.inner_steps=40",
    "darl.ttl_floor_s=8",
    "darl.heartbeat_s=1",
    "darl.detect_s=4",
    "evaluation.max_windows=32",
    "central.linger_s=1",  # a killed site does not come back
)
"""Overrides that suit a demonstration: short phases, and a killed site is noticed soon."""
OURS = (
    "site", "replica", "run.name", "resume", "dry",
    "central.url", "central.port", "central.aggregator_port", "central.security.keys",
    "central.bundle", "central.roles",
)  # fmt: skip
"""Keys that the demonstration sets itself: an override of theirs would be ignored."""
GIVE_UP_S = 600.0
"""Something is merged within that time; a hang ends in an error instead."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the command line asked for."""

    sites: int
    kill: bool
    late: bool
    overrides: tuple[str, ...]


class Child:
    """One process of the demonstration, in a group of its own, its output in a file."""

    def __init__(self, name: str, command: list[str], log_path: Path) -> None:
        self.name, self.log_path = name, log_path
        with log_path.open("wb") as out:
            self._process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                start_new_session=True, cwd=paths.PROJECT, preexec_fn=die_with_parent,
            )  # fmt: skip

    def code(self) -> int | None:
        """Exit code, None while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        """SIGKILL to the whole group: no handler runs, nothing is said goodbye to."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self._process.wait()

    def tail(self) -> str:
        """The last lines it printed."""
        lines = self.log_path.read_text(errors="replace").splitlines()[-15:]
        return "\n".join(f"    {self.name}: {line}" for line in lines)


def main(argv: list[str]) -> int:
    """Runs the demonstration and returns its exit code."""
    if any(word in ("-h", "--help") for word in argv):
        print(__doc__)
        return 0
    pww_log.setup()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        plan = parse(argv)
        root = Path(compose(plan.overrides).run.root)
        return _run(plan, paths.PROJECT / root)
    except KeyboardInterrupt:
        print("demo: stopped; its processes are ended", file=sys.stderr)
        return Stopped.exit_code
    except PwwError as fault:
        print(fault, file=sys.stderr)
        return fault.exit_code


def parse(argv: list[str]) -> Plan:
    """Splits our three keys from the configuration's.

    Raises:
        ConfigError: a value of ours is out of range, or a key is not the user's to set here.
    """
    ours = {"sites": "2", "kill": "0", "late": "0"}
    rest = []
    faults = []
    for word in argv:
        key, _, value = word.partition("=")
        if key in ours:
            ours[key] = value
        elif (key := key.lstrip("+~")) in OURS:
            faults.append(f"{word}: the demo sets {key} itself; leave it out")
        else:
            rest.append(word)
    if ours["sites"] not in "12345678" or len(ours["sites"]) != 1:
        faults.append(f"sites={ours['sites']}: a whole number from 1 to 8")
    faults += [f"{k}={ours[k]}: 0 or 1" for k in ("kill", "late") if ours[k] not in ("0", "1")]
    if not faults and ours["kill"] == "1" and int(ours["sites"]) + int(ours["late"]) < 2:
        faults.append("kill=1 needs sites=2 or more: somebody must train the killed site's blocks")
    if faults:
        raise ConfigError(faults)
    return Plan(int(ours["sites"]), ours["kill"] == "1", ours["late"] == "1", (*QUICK, *rest))


def _run(plan: Plan, root: Path) -> int:
    name = free_name(root, "demo")
    port, flower_port = free_ports(2)
    common = [
        *plan.overrides,
        f"central.port={port}",
        f"central.aggregator_port={flower_port}",
        f"central.blob_port={flower_port}",
    ]
    folder = root / name
    logs = root / f"{name}-logs"
    logs.mkdir(parents=True)
    print(f"demo: central {name} on 127.0.0.1:{port}; logs are in {paths.shown(logs)}")
    started: dict[str, Child] = {}

    def start(who: str) -> None:
        command = [sys.executable, "-m"]
        if who == "central":
            command += ["pww.central", *common, f"run.name={name}"]
        else:
            command += [
                "pww.train", "site=local", f"replica={who}", *common,
                f"run.name={name}-{who}", f"central.url=http://127.0.0.1:{port}",
            ]  # fmt: skip
        started[who] = Child(who, command, logs / f"{who}.log")

    first = [chr(ord("a") + i) for i in range(plan.sites)]
    victim = first[-1] if plan.kill else ""
    late = chr(ord("a") + plan.sites) if plan.late else ""
    killed, told = False, 0
    clock, wait = SystemClock(), threading.Event()
    deadline = clock.monotonic() + GIVE_UP_S
    try:
        start("central")
        for who in first:
            start(who)
        while True:
            codes = {who: child.code() for who, child in started.items()}
            inside = _inside_a_phase(root / f"{name}-{victim}") if victim and not killed else ""
            if inside:
                started[victim].kill()
                killed = True
                print(f"demo: killed {victim} in the middle of a phase, after {inside}")
            merges = _merges(folder)
            for row in merges[told:]:
                sites, loss = ", ".join(row["merged"]), row["loss"]
                print(f"demo: round {row['round']} merged {sites}  loss {loss:.3f}", flush=True)
            if len(merges) > told:
                told, deadline = len(merges), clock.monotonic() + GIVE_UP_S
            if late and late not in started and (killed or told >= 2):
                start(late)
                print(f"demo: {late} joins after {told} merges")
            ended = {who: code for who, code in codes.items() if code is not None}
            failed = [w for w, c in ended.items() if c != 0 and not (w == victim and killed)]
            if failed:
                tails = "\n".join(started[w].tail() for w in failed)
                raise StateError(f"{', '.join(failed)} ended with an error:\n{tails}")
            if len(ended) == len(started):
                break
            if clock.monotonic() > deadline:
                tails = "\n".join(c.tail() for c in started.values())
                raise StateError(f"nothing was merged for {GIVE_UP_S:.0f} s:\n{tails}")
            clock.wait(wait, 0.2)
    finally:
        for child in started.values():
            child.kill()
    if plan.kill and not killed:
        raise StateError("the run ended before a site could be killed: give it more data")
    if late and late not in started:
        raise StateError("the run ended before a site could join late: give it more data")
    folders = {f"local/{who}": root / f"{name}-{who}" for who in started if who != "central"}
    return _judge(folder, folders)


def _judge(central: Path, sites: dict[str, Path]) -> int:
    """Joins what the sites drew with what was merged, and asks the ledger's audit as well."""
    from pww.central.coverage import coverage

    found, held_out = coverage(central, sites), _held_out(sites.values())
    books = found.books
    print(found.render())
    print(
        json.dumps(
            {
                "blocks": books.blocks,
                "committed": books.exactly_once,
                "duplicates": found.duplicates,
                "missing": found.missing,
                "merges": books.merges,
                "held_out_first": held_out[min(held_out)] if held_out else None,
                "held_out_last": held_out[max(held_out)] if held_out else None,
            }
        )
    )
    return 0 if books.ok and found.ok and books.exactly_once == books.blocks else 1


def _held_out(sites: Iterable[Path]) -> dict[int, float]:
    """Held-out loss by round; two sites that evaluated one round evaluated one theta.

    Raises:
        StateError: they did not: the sites disagree on theta_outer.
    """
    by_round: dict[int, tuple[str, float]] = {}
    for site in sites:
        for row in read_json_lines(site / "metrics.jsonl"):
            if row["split"] != "eval":
                continue
            number, here = int(str(row["round"])), (str(row["state_hash"]), float(str(row["loss"])))
            there = by_round.setdefault(number, here)
            if there[0] != here[0]:
                raise StateError(
                    f"round {number}: theta {there[0]} at one site, {here[0]} at another"
                )
    return {number: loss for number, (_, loss) in by_round.items()}


def _inside_a_phase(site: Path) -> str:
    """Where in its phase the site is ("step 10 of 40"); "" in a first phase or a second half."""
    rows = read_json_lines(site / "metrics.jsonl")
    last = rows[-1] if rows else {"split": ""}
    if last["split"] != "train" or last["round"] == 0:
        return ""
    done, of = int(str(last["phase_step"])), int(str(last["phase_steps"]))
    return f"step {done} of {of}" if 0 < done <= of // 2 else ""


def _merges(central: Path) -> list[dict[str, Any]]:
    rows = read_json_lines(central / "metrics.jsonl")
    return [row for row in rows if row["split"] == "outer"]


def free_name(root: Path, stem: str) -> str:
    """The first of `stem-1`, `stem-2`, … that no folder of `root` has."""
    number = 1
    while (root / f"{stem}-{number}").exists() or (root / f"{stem}-{number}-logs").exists():
        number += 1
    return f"{stem}-{number}"


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nothing listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
