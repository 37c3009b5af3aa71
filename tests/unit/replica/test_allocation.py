"""Who is where in an allocation, how a lease is shared, and what its actors refuse."""

import json
import threading
from pathlib import Path

import pytest
import torch

from pww.errors import CheckpointError, ConfigError, LeaseError, Refused, Stopped, TrainerError
from pww.lease.space import BlockSpace
from pww.replica.blocks import Blocks
from pww.replica.circle import Circle
from pww.replica.entry import Entry
from pww.replica.everyone import Everyone, _fault, _told
from pww.replica.plan import PhasePlan
from pww.replica.together_disk import Checkpoints
from pww.wire import Lease, Span

SPACE = BlockSpace(
    num_windows=54, block_windows=4, seed=1, epochs=2, window_tokens=9, corpus="c" * 64
)


def lease(start: int, stop: int, *, meant: int = 0) -> Lease:
    return Lease(id=1, replica="a/x", span=Span(start, stop), watermark=99, ttl_s=1.0, meant=meant)


def test_blocks_are_contiguous_and_outer_groups_cut_across() -> None:
    blocks = Blocks.of(8, replicas=2)
    assert [blocks.replica(rank) for rank in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [blocks.place(rank) for rank in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]
    with pytest.raises(TrainerError, match=r"diloco\.replicas=3: 8 ranks .*one of 1, 2, 4, 8"):
        Blocks.of(8, replicas=3)


@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
@pytest.mark.parametrize("blocks", [1, 2, 3, 5, 8, 12])
def test_a_lease_is_shared_whole_and_evenly(replicas: int, blocks: int) -> None:
    """Every window once, shares that differ by one block at most, steps of the largest."""
    plan = PhasePlan(SPACE, inner_steps=3, batch_windows=4, replicas=replicas)
    one = lease(0, blocks)
    shares = [plan.windows(one, replica=replica) for replica in range(replicas)]
    whole = PhasePlan(SPACE, inner_steps=3, batch_windows=4).windows(one)
    assert [window for share in shares for window in share] == whole
    parts = [len(plan.part(one, replica=replica)) for replica in range(replicas)]
    assert max(parts) - min(parts) <= 1
    assert plan.num_steps(one) == max(-(-len(share) // 4) for share in shares)


def test_a_phase_is_partial_if_every_replica_has_less_than_it_should() -> None:
    plan = PhasePlan(SPACE, inner_steps=3, batch_windows=4, replicas=2)
    assert plan.num_blocks == 6
    assert not plan.is_partial(lease(0, 6))
    assert not plan.is_partial(lease(0, 5))  # one replica is whole
    assert plan.is_partial(lease(0, 4))
    assert not plan.is_partial(lease(0, 4, meant=4))


def everyone() -> Everyone:
    return Everyone(Circle(None, device=torch.device("cpu")), asked=threading.Event())


def test_all_ranks_share_what_json_can_say() -> None:
    assert everyone().share(lambda: {"a": [1, None]}) == {"a": [1, None]}
    with pytest.raises(TrainerError, match="rank 0 could not share its result: Object of type"):
        everyone().share(object)
    with pytest.raises(LeaseError, match="as it is"):
        everyone().local(lambda: (_ for _ in ()).throw(LeaseError("as it is")))
    with pytest.raises(CheckpointError, match="mine"):
        everyone().agree_on_fault(CheckpointError("mine"))
    with pytest.raises(NotImplementedError, match="use a Circle"):
        everyone().gather(1)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Stopped("s"), Stopped), (CheckpointError("c"), CheckpointError),
        (ConfigError(["one", "two"]), TrainerError), (Refused("r", code="gone"), TrainerError),
    ],
)  # fmt: skip
def test_faults_travel_with_their_text(fault: Exception, kind: type[Exception]) -> None:
    """And those that end a process in a way of their own with their kind."""
    told = _fault(json.loads(json.dumps(_told(fault))))
    assert type(told) is kind
    assert str(told) == str(fault)


def test_a_checkpoint_whose_report_is_damaged(tmp_path: Path) -> None:
    disk = Checkpoints(tmp_path, keep=2, is_first=True)
    folder = tmp_path / "checkpoints" / "phase-000000"
    folder.mkdir()
    (folder / "round.json").write_text("{}")
    entry = Entry(folder, None, 0, 0, None)  # type: ignore[arg-type]
    with pytest.raises(
        CheckpointError, match=r"round\.json cannot be read .*: remove .*phase-000000"
    ):
        disk.report(entry)
    disk.close()
