"""Which rank a process is: what torchrun, srun, a batch shell and nobody say."""

import pytest

from pww.errors import TrainerError
from pww.trainer.place import check, found, hosts, port_of

STEP = {
    "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_PROCID": "9", "SLURM_NTASKS": "16",
    "SLURM_LOCALID": "1", "SLURM_STEP_NODELIST": "nid[005001-005002]",
    "SLURM_JOB_NODELIST": "nid[005000-005002]",
}  # fmt: skip


def test_a_step_of_srun() -> None:
    place = found(STEP)
    assert (place.how, place.rank, place.world, place.local_rank) == ("srun", 9, 16, 1)
    assert place.num_nodes == 2
    assert place.variables() == {
        "RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "MASTER_ADDR": "nid005001",
        "MASTER_PORT": "14711",
    }  # fmt: skip


def test_every_rank_of_a_step_meets_at_one_place() -> None:
    places = [found({**STEP, "SLURM_PROCID": str(rank)}) for rank in range(16)]
    assert len({(p.address, p.port) for p in places}) == 1
    assert [p.rank for p in places] == list(range(16))


def test_a_step_on_one_node_needs_no_name_resolved() -> None:
    assert found({**STEP, "SLURM_STEP_NODELIST": "nid005002"}).address == "127.0.0.1"


def test_a_step_of_one_rank_meets_nobody() -> None:
    place = found({**STEP, "SLURM_PROCID": "0", "SLURM_NTASKS": "1"})
    assert (place.how, place.world, place.variables()) == ("srun", 1, {})


def test_a_step_that_lists_no_nodes_takes_the_jobs() -> None:
    environ = {k: v for k, v in STEP.items() if k != "SLURM_STEP_NODELIST"}
    assert found(environ).address == "nid005000"


def test_a_batch_shell_is_no_rank() -> None:
    shell = {k: v for k, v in STEP.items() if k != "SLURM_STEP_ID"} | {"SLURM_PROCID": "0"}
    for environ in ({}, shell, {**shell, "SLURM_STEP_ID": "batch"}):
        place = found(environ)
        assert (place.how, place.rank, place.world) == ("alone", 0, 1)
        assert place.variables() == {}


def test_torchrun_comes_first() -> None:
    theirs = {
        "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "n7", "MASTER_PORT": "29999",
    }  # fmt: skip
    place = found({**STEP, **theirs})
    assert (place.how, place.rank, place.world, place.num_nodes) == ("torchrun", 3, 4, 2)
    assert place.variables() == {}


def test_ports_of_neighbours_differ_and_are_below_those_that_linux_gives() -> None:
    ports = [port_of(job) for job in range(1_000_000, 1_000_500)]
    assert len(set(ports)) == 500
    assert all(1024 < port < 32768 for port in ports)
    assert found({**STEP, "SLURM_JOB_ID": "4712"}).port != found(STEP).port


@pytest.mark.parametrize(
    ("nodes", "names"),
    [
        ("n1", ["n1"]),
        ("a,b-1", ["a", "b-1"]),
        ("n[1-3,07]", ["n1", "n2", "n3", "n07"]),
        ("gcn[098-101],login", ["gcn098", "gcn099", "gcn100", "gcn101", "login"]),
        ("r[1-2]c[3,4]", ["r1c3", "r1c4", "r2c3", "r2c4"]),
    ],
)
def test_lists_of_hosts(nodes: str, names: list[str]) -> None:
    assert list(hosts(nodes)) == names


@pytest.mark.parametrize("nodes", ["", "n[", "n[1-]", "a,,b", ",a", "n[a]"])
def test_what_is_no_list_of_hosts_is_refused(nodes: str) -> None:
    with pytest.raises(TrainerError, match=r"SLURM_STEP_NODELIST=.*: is no list of hosts as Slurm"):
        list(hosts(nodes))


@pytest.mark.parametrize("name", ["SLURM_NTASKS", "SLURM_JOB_ID", "SLURM_PROCID", "SLURM_LOCALID"])
def test_a_variable_that_is_no_number_is_named(name: str) -> None:
    with pytest.raises(TrainerError, match=rf"^{name}=many: must be a whole number"):
        found({**STEP, name: "many"})


def test_a_variable_that_is_missing_is_named() -> None:
    with pytest.raises(TrainerError, match=r"^SLURM_NTASKS=\(not set\): must be a whole number"):
        found({k: v for k, v in STEP.items() if k != "SLURM_NTASKS"})


def test_other_ranks_than_the_run_was_composed_for_are_refused() -> None:
    check(found(STEP), ranks=16)
    check(found({}), ranks=1)
    said = {
        r"^srun started 16 task\(s\), and the run has parallel\.ranks=8: ": found(STEP),
        r"^WORLD_SIZE=2, and the run has": found({"RANK": "0", "WORLD_SIZE": "2"}),
        r"^this process was started alone, and the run has .*pww\.train, which": found({}),
    }
    for sentence, place in said.items():
        with pytest.raises(TrainerError, match=sentence):
            check(place, ranks=8)
