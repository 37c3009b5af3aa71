"""Who may run beside whom over one run folder, and with which settings."""

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from pww.central.__main__ import main
from pww.central.roles import ALL, held
from pww.central.same_settings import require_same, tell_changes
from pww.config import paths
from pww.config.load import compose
from pww.errors import ConfigError, InUse

ROOT = Path(__file__).parents[3]
HOLDER = """
import sys
from pathlib import Path
from pww.central.roles import held
with held(Path(sys.argv[1]), sys.argv[2].split(",")):
    print("mine", flush=True)
    sys.stdin.read()
"""
SETS = (("coordinator",), ("aggregator",), ALL)


@pytest.fixture
def holder(tmp_path: Path) -> Iterator:
    """Starts another process with these roles."""
    made: list[subprocess.Popen] = []

    def hold(*roles: str) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(tmp_path / "run"), ",".join(roles)], text=True,
            stdout=subprocess.PIPE, stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        made.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "mine\n"
        return process

    yield hold
    for process in made:
        process.kill()
        process.communicate()


def test_each_role_is_there_once(holder, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for theirs, ours in product(SETS, SETS):
        process = holder(*theirs)
        if set(theirs) & set(ours):
            used = pytest.raises(InUse, match="is in use by another process: another central")
            with used, held(run, ours):
                pass
        else:
            with held(run, ours):
                pass
        process.kill()
        process.communicate()
        with held(run, ours):  # the kernel let go
            pass


def test_a_refused_role_holds_nothing(holder, tmp_path: Path) -> None:
    holder("aggregator")
    run = tmp_path / "run"
    with pytest.raises(InUse, match="its aggregator"), held(run, ALL):
        pass
    with held(run, ("coordinator",)):
        pass


@pytest.mark.parametrize("role", ["coordinator", "aggregator"])
def test_a_replay_waits_for_both(holder, tmp_path: Path, capsys, role: str) -> None:
    holder(role)
    (tmp_path / "run" / "central").mkdir(exist_ok=True)
    assert main(["replay", str(tmp_path / "run")]) == 1
    assert "its central runs; a replay is for when it has stopped" in capsys.readouterr().err


def test_both_have_the_same_settings_but_for_their_roles(tmp_path: Path) -> None:
    common = ["run.name=x", "diloco.outer.lr=0.5"]
    paths.freeze(compose([*common, "central.roles=[coordinator]"]), tmp_path)
    require_same(compose([*common, "central.roles=[aggregator]"]), tmp_path)
    other = compose(
        ["run.name=x", "diloco.outer.lr=0.7", "central.linger_s=3", "central.roles=[aggregator]"]
    )
    with pytest.raises(ConfigError) as fault:
        require_same(other, tmp_path)
    assert fault.value.faults == (
        "central.linger_s=3.0: the coordinator of this run has 60.0; start both with the same "
        "settings",
        "diloco.outer.lr=0.7: the coordinator of this run has 0.5; start both with the same "
        "settings",
    )
    (tmp_path / "config.yaml").unlink()
    with pytest.raises(ConfigError, match=r"config\.yaml: cannot be read"):
        require_same(other, tmp_path)


def test_a_coordinator_alone_loads_neither_torch_nor_flower() -> None:
    """Those are half a gigabyte on a login node, and minutes from some file systems."""
    script = (
        "import sys, pww.central.coordinating, pww.central.service\n"
        "print(sorted({'torch', 'flwr'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout == "[]\n"


def test_what_is_set_otherwise_than_before_is_told(tmp_path: Path, caplog) -> None:
    before = compose(["codec=int4", "central.roles=[coordinator]"])
    tell_changes(before, tmp_path)  # a first start
    paths.freeze(before, tmp_path)
    tell_changes(compose(["codec=int4"]), tmp_path)
    assert caplog.text == ""
    tell_changes(compose(["codec=int8", "transport.down=int8"]), tmp_path)
    assert "this run goes on with codec.kind=int8; until now it was int4" in caplog.text
    assert "transport.down=int8; until now it was bf16" in caplog.text
