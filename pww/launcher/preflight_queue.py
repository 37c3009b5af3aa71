"""What the scheduler allows this job: its partition's limits, its account's, and its own word.

`sbatch --test-only` is given the very script that would be queued, so a rule of the machine that
nobody told us of is met here and not after a day in the queue.
"""

import getpass
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pww.clock import Clock
from pww.config import paths
from pww.config.schema import Config, Slurm
from pww.errors import StateError
from pww.launcher import batch, identity, runs, slurm
from pww.launcher.finding import Finding, State


def findings(config: Config, *, clock: Clock) -> Iterator[Finding]:
    """Nothing without a queue, or where its commands are not (a rank's container)."""
    queue = config.site.queue
    if queue.kind != "slurm" or shutil.which("scontrol") is None:
        return
    try:
        yield from _partition(config, queue, slurm.partition(queue.partition))
        yield from _account(queue)
        if shutil.which("sbatch"):
            yield _own_word(config, queue, clock)
    except StateError as fault:
        yield Finding("queue", "bad", str(fault))


def _partition(config: Config, queue: Slurm, told: dict[str, str]) -> Iterator[Finding]:
    key = f"site.queue.partition={queue.partition}"
    if not told:
        yield Finding("queue", "bad", f"{key}: Slurm knows no such partition")
        return
    faults: list[str] = []
    longest, wanted = seconds(told.get("MaxTime", "")), seconds(queue.time)
    if wanted > longest:
        faults.append(f"site.queue.time={queue.time}: at most {told['MaxTime']} there")
    for limit in ("MaxNodes", "TotalNodes"):
        number = told.get(limit, "")
        if number.isdecimal() and config.site.num_nodes > int(number):
            faults.append(f"site.num_nodes={config.site.num_nodes}: at most {number} there")
            break
    allowed = told.get("AllowAccounts", "ALL")
    if queue.account and allowed != "ALL" and queue.account not in allowed.split(","):
        faults.append(f"site.queue.account={queue.account}: it takes only {allowed}")
    for fault in faults:
        yield Finding("queue", "bad", f"{key}: {fault}")
    if faults:
        return
    state: State = "good" if told.get("State") == "UP" else "warning"
    yield Finding(
        "queue",
        state,
        f"partition {queue.partition} is {told.get('State', 'unknown').lower()}, at most "
        f"{told.get('MaxTime', '?')} on {told.get('MaxNodes', '?').lower()} of "
        f"{told.get('TotalNodes', '?')} nodes, arrays of {slurm.longest_array()}",
    )


def _account(queue: Slurm) -> Iterator[Finding]:
    """Limits of the user's accounts; many clusters keep none, and some hide them."""
    if shutil.which("sacctmgr") is None:
        return
    try:
        rows = slurm.accounts(getpass.getuser())
    except StateError:
        rows = []
    rows = [row for row in rows if row["Partition"] in ("", queue.partition)]
    if not rows:
        yield Finding("account", "good", "no limits of accounts are known here")
        return
    names = sorted({row["Account"] for row in rows})
    if queue.account and queue.account not in names:
        yield Finding(
            "account", "bad",
            f"site.queue.account={queue.account}: is none of yours ({', '.join(names)})",
        )  # fmt: skip
        return
    mine = [row for row in rows if not queue.account or row["Account"] == queue.account]
    queued = len(slurm.queued())
    for row in mine:
        yield _limits(row, queue, queued)


def _limits(row: dict[str, str], queue: Slurm, queued: int) -> Finding:
    name, most = row["Account"], row["MaxSubmit"]
    if seconds(queue.time) > seconds(row["MaxWall"]):
        return Finding(
            "account", "bad",
            f"site.queue.time={queue.time}: account {name} has at most {row['MaxWall']}",
        )  # fmt: skip
    told = f"{name}: {queued} of your jobs are queued"
    if most.isdecimal():
        told += f", at most {most}"
    if row["MaxJobs"].isdecimal():
        told += f", {row['MaxJobs']} run at a time"
    full = most.isdecimal() and queued >= int(most)
    return Finding(
        "account", "bad" if full else "good", f"{told}; wait, or scancel some" if full else told
    )


def _own_word(config: Config, queue: Slurm, clock: Clock) -> Finding:
    code, _ = identity.current()
    root = paths.PROJECT / config.run.root
    run = root / runs.named(config, clock).run.name
    text = batch.script(config, runs=[run], code=identity.kept_in(code, root))
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.sh"
        script.write_text(text)
        try:
            said = slurm.tested(script)
        except StateError as fault:
            words = str(fault).replace(str(script), "script.sh")
            return Finding("job", "bad", f"Slurm would not take it: {words}")
    found = re.search(r"to start at (\S+)", said)
    when = f"would start at {found[1]} as things are" if found else " ".join(said.split())
    return Finding("job", "good", f"Slurm would take it; {when}")


def seconds(time: str) -> float:
    """Of a time as Slurm writes it (`2-00:00:00`, `12:30:00`, `30:00`, `30`); inf: no limit."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", time)
    if found is None:
        return float("inf")
    days, *parts = found.groups()
    numbers = [int(part) for part in parts if part is not None]
    if days is not None:  # days-hours[:minutes[:seconds]]
        hours, minutes, rest = [*numbers, 0, 0][:3]
    elif len(numbers) == 3:
        hours, minutes, rest = numbers
    else:  # minutes[:seconds]
        hours, (minutes, rest) = 0, [*numbers, 0][:2]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60.0 + rest
