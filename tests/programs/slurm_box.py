"""A real Slurm on one machine, without systemd and without touching its configuration.

Several slurmd play the nodes of a cluster: they share this host, and lie about its processors,
memory and GPUs. Everything is in one folder, every port is one that was free. What it cannot show:
binding to cores, control groups, accounting.
"""

import getpass
import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
SEARCH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
READY_S = 60.0

SLURM_CONF = """
ClusterName={name}
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={port}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
GresTypes=gpu
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,sched_min_interval=0,bf_interval=1,batch_sched_delay=0
ReturnToService=2
MaxArraySize={longest}
MinJobAge=86400
KillWait=2
InactiveLimit=0
MailProg=/bin/true
NodeName={all} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports} CPUs=72 \\
  RealMemory=480000 Gres=gpu:8 State=UNKNOWN
PartitionName=gpu Nodes={all} MaxTime=1-0 DefaultTime=5 Default=YES State=UP
PartitionName=standard-g Nodes={rocm} MaxTime=2-0 DefaultTime=5 State=UP
PartitionName=small-g Nodes={rocm} MaxTime=3-0 DefaultTime=5 State=UP
PartitionName=dev-g Nodes={rocm} MaxTime=3:00:00 DefaultTime=5 State=UP
PartitionName=gpu_h100 Nodes={cuda} MaxTime=5-0 DefaultTime=5 State=UP
PartitionName=gpu_a100 Nodes={cuda} MaxTime=5-0 DefaultTime=5 State=UP
"""
GRES_CONF = """
AutoDetect=off
NodeName={rocm} Name=gpu File={folder}/gpu[0-7] Flags=amd_gpu_env
NodeName={cuda} Name=gpu File={folder}/gpu[0-7] Flags=nvidia_gpu_env
"""


def missing() -> list[str]:
    """Programs of Slurm and Munge that this machine lacks."""
    return [name for name in PROGRAMS if shutil.which(name, path=SEARCH) is None]


@dataclass
class Box:
    """A cluster of four nodes, two with ROCm devices and two with CUDA's; `env` reaches it."""

    longest_array: int = 1001
    folder: Path = field(init=False)
    env: dict[str, str] = field(init=False)
    _daemons: list[subprocess.Popen] = field(default_factory=list)

    def start(self) -> None:
        """Returns when every node takes jobs."""
        # Not in pytest's folder: a socket's name is short, and munge wants its folder readable
        self.folder = Path(tempfile.mkdtemp(prefix="pww-slurm-", dir="/tmp"))
        self.folder.chmod(0o755)
        self.env = {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": SEARCH}
        nodes = [f"127.0.0.{n}" for n in (11, 12, 13, 14)]  # names that resolve everywhere
        ports = _free_ports(1 + len(nodes))
        told = {
            "name": f"box{ports[0]}",
            "host": socket.gethostname().partition(".")[0],
            "user": getpass.getuser(),
            "folder": self.folder,
            "port": ports[0],
            "ports": ",".join(map(str, ports[1:])),
            "longest": self.longest_array,
            "all": ",".join(nodes),
            "rocm": ",".join(nodes[:2]),
            "cuda": ",".join(nodes[2:]),
        }
        (self.folder / "slurm.conf").write_text(SLURM_CONF.format(**told))
        (self.folder / "gres.conf").write_text(GRES_CONF.format(**told))
        (self.folder / "cgroup.conf").write_text("")
        (self.folder / "state").mkdir()
        for number in range(8):
            _device(self.folder / f"gpu{number}")
        self._munge()
        self._daemon("slurmctld", "-i", "-D")
        for node in nodes:
            (self.folder / f"spool-{node}").mkdir()
            self._daemon("slurmd", "-D", "-N", node)
        self._until_idle(len(nodes))

    def run(self, *command: str) -> str:
        """Runs one of Slurm's commands and returns what it says."""
        done = subprocess.run(
            command, env={**os.environ, **self.env}, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
        if done.returncode:
            raise AssertionError(f"{' '.join(command)}: {done.stderr or done.stdout}")
        return done.stdout

    def job(self, job: str) -> dict[str, str]:
        """What the controller knows of a job, `JobState` and all."""
        line = self.run("scontrol", "-o", "show", "job", job)
        return dict(part.split("=", 1) for part in line.split() if "=" in part)

    def until(self, job: str, *states: str, timeout_s: float = 60) -> dict[str, str]:
        """The job as soon as it is in one of `states`."""
        end = time.monotonic() + timeout_s
        while (found := self.job(job))["JobState"] not in states:
            if time.monotonic() > end:
                raise AssertionError(f"job {job} is {found['JobState']}, not {states}: {found}")
            time.sleep(0.1)
        return found

    def clear(self) -> None:
        """Cancels every job and waits until all of them are gone."""
        self.run("scancel", "--user", getpass.getuser())
        end = time.monotonic() + 30
        while self.run("squeue", "-h") and time.monotonic() < end:
            time.sleep(0.1)

    def stop(self) -> None:
        """Ends the cluster and removes its folder."""
        with suppress(AssertionError, subprocess.TimeoutExpired):
            self.clear()
        for process in reversed(self._daemons):
            process.terminate()
        for process in self._daemons:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pid in _steps_of(self.folder):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        self._daemon(
            "munged", "--foreground", "--force", f"--key-file={key}", "--num-threads=2",
            f"--socket={self.folder}/munge.socket", f"--pid-file={self.folder}/munged.pid",
            f"--seed-file={self.folder}/seed", f"--log-file={self.folder}/munged.log",
        )  # fmt: skip
        end = time.monotonic() + READY_S
        while not (self.folder / "munge.socket").exists():
            assert time.monotonic() < end, "munged did not start"
            time.sleep(0.02)

    def _daemon(self, *command: str) -> None:
        with (self.folder / "daemons.log").open("ab") as log:
            self._daemons.append(
                subprocess.Popen(
                    command, env={**os.environ, **self.env}, stdout=log, stderr=log,
                    stdin=subprocess.DEVNULL, start_new_session=True,
                )
            )  # fmt: skip

    def _until_idle(self, nodes: int) -> None:
        end = time.monotonic() + READY_S
        said = ""
        while time.monotonic() < end:
            with suppress(AssertionError):
                said = self.run("sinfo", "-h", "-N", "-p", "gpu", "-t", "idle", "-o", "%N")
                if len(said.split()) == nodes:
                    return
            time.sleep(0.1)
        logs = "\n".join(p.read_text()[-1500:] for p in sorted(self.folder.glob("*.log")))
        raise AssertionError(f"only {said.split()} of {nodes} nodes are idle:\n{logs}")


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _device(path: Path) -> None:
    """A GPU for Slurm to count: another /dev/null; a plain file where we may not make one."""
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        path.touch()


def _steps_of(folder: Path) -> list[int]:
    """Steps whose slurmd is gone: only those of this cluster."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                name = (entry / "comm").read_text().strip()
                mine = f"SLURM_CONF={folder}/slurm.conf".encode()
                if name == "slurmstepd" and mine in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found
