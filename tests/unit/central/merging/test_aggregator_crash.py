"""Death at any instruction: the old round or the new one, and the run goes on to the same theta."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pww.errors import StateError
from pww.wire import Offer

PROGRAM = Path(__file__).with_name("conftest.py")
POINTS = {  # where it dies: the round that the ledger then names
    "draft begun": 1,
    "draft nearly whole": 1,
    "generation durable": 1,
    "round closed": 2,
    "one payload dropped": 2,
    "collecting": 2,
    "payload durable": 1,
    "delta booked": 1,
    "never": 2,
}


@pytest.fixture(scope="module")
def deaths(tmp_path_factory):
    """The folder of each death, and how each process ended."""
    folder = tmp_path_factory.mktemp("deaths")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder), *POINTS],
        capture_output=True, text=True, timeout=240, check=True,
    )  # fmt: skip
    return folder, dict(line.split(":") for line in done.stdout.splitlines())


@pytest.mark.parametrize("point", POINTS)
def test_death_leaves_the_old_round_or_the_new_one(make_world, deaths, reference, delta_of, point):
    folder = deaths[0] / point
    assert deaths[1][point] == ("0" if point == "never" else "9")
    world = make_world(folder, seeded=False)
    assert world.books.round == POINTS[point]
    reference.merge([delta_of(1), delta_of(2)], tokens=[100, 200])
    if POINTS[point] == 2:
        reference.merge([delta_of(11), delta_of(12)], tokens=[100, 200])
    assert world.matches(reference)  # what the pointer names is whole
    current = POINTS[point]
    assert world.generations() == [f"round-{n:06d}" for n in (current - 1, current)]
    staged = {one.offer.delta for one in world.books.staged()}
    assert world.payloads() == sorted(f"{delta}.payload" for delta in staged)
    assert not list(world.state.rglob("*.part"))

    # the sites send what they had on their disks again, and the round goes on
    outbox = sorted(folder.glob("*.json"))
    offers = [Offer.model_validate_json(path.read_text()) for path in outbox]
    for offer, path in zip(offers, outbox, strict=True):
        verdict = world.merger.accept(offer, path.with_suffix(".delta"))
        assert verdict is None or verdict.outcome == "merged"
    if POINTS[point] == 1:
        reference.merge([delta_of(11), delta_of(12)], tokens=[100, 200])
        world.merger.maybe_close()
    assert world.books.round == 2
    assert world.matches(reference)
    assert world.merger.maybe_close() is None
    for offer in offers:
        assert world.merger.accept(offer, None).outcome == "merged"
    world.books.verify()


def test_a_lost_payload_is_found_out_on_opening(world, delta_of):
    a = world.join("a/x")
    a.deliver(delta_of(1))
    for path in (world.state / "deltas").iterdir():
        path.unlink()
    world.reopen()
    assert world.books.staged() == ()
    verdict = world.books.verdicts("a/x")[-1]
    assert (verdict.outcome, verdict.reason) == ("rejected", "payload lost at the central")


def test_what_the_ledger_does_not_name_is_swept(world, delta_of):
    a = world.join("a/x")
    a.deliver(delta_of(1))
    kept = world.payloads()
    (world.state / "deltas" / f"{'e' * 32}.payload").write_bytes(b"never booked")
    (world.state / "deltas" / f"{'e' * 32}.payload.part").write_bytes(b"never whole")
    for name in ("round-000001", "round-000007", "round-000003.part"):
        (world.state / "generations" / name).mkdir()
    world.reopen()
    assert (world.payloads(), world.generations()) == (kept, ["round-000000"])
    assert world.merger.maybe_close().merged == ("a/x",)


def test_garbage_before_theta0_is_swept(make_world, tmp_path):
    (tmp_path / "central" / "generations" / "round-000000").mkdir(parents=True)
    world = make_world(tmp_path, seeded=False)
    assert world.generations() == []
    world.seed()
    assert world.generations() == ["round-000000"]


def test_a_restart_goes_on_with_momentum(world, reference, delta_of):
    a = world.join("a/x")
    for round_ in range(3):
        a.deliver(delta_of(round_))
        world.reopen()
        world.merger.maybe_close()
        reference.merge([delta_of(round_)], tokens=[100])
        assert world.matches(reference)
        assert world.books.report().round == round_ + 1


def test_a_generation_that_is_gone_is_told(world):
    (world.state / "generations" / "round-000000" / "generation.json").unlink()
    with pytest.raises(StateError, match=r"is named by the ledger and cannot be read .*restore"):
        world.reopen()


FULL = """
import resource, signal, sys
sys.argv = ["conftest.py", sys.argv[1], "never"]
sys.path.insert(0, {folder!r})
from pathlib import Path
import conftest
from pww.errors import StateError
world = conftest.World(Path(sys.argv[1]))
site = world.join("a/x", "a" * 32)
site.deliver(conftest.values(1))
payload = next((world.state / "deltas").iterdir()).read_bytes()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
before = resource.getrlimit(resource.RLIMIT_FSIZE)
write = conftest.Draft.put
def limited(*args, **kwargs):  # the ledger stays writable; only the generation meets a full disk
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, before[1]))
    try:
        write(*args, **kwargs)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
conftest.Draft.put = limited
try:
    world.merger.maybe_close()
except StateError as fault:
    print(fault)
print(world.generations(), world.books.round, len(world.payloads()))
conftest.Draft.put = write
print(world.merger.maybe_close().round)
reference = conftest.Reference()
reference.merge([conftest.values(1)], tokens=[100])
print(world.matches(reference))
"""


def test_a_full_disk_leaves_the_old_generation_and_the_delta(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FULL.format(folder=str(PROGRAM.parent)), str(tmp_path)],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    told, state, round_, same = done.stdout.splitlines()
    assert told.startswith("round 1 could not be written: [Errno 27]")
    assert told.endswith("make room on that disk and start the central again")
    assert (state, round_, same) == ("['round-000000'] 0 1", "1", "True")


def test_a_full_disk_on_receipt_leaves_the_delta_at_its_site(world, delta_of, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    a = world.join("a/x")
    offer, path = a.offer(delta_of(1))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(
            StateError, match=r"payload of delta .* could not be written: .*No space"
        ):
            world.merger.accept(offer, path)
    assert (world.payloads(), world.books.staged()) == ([], ())
    assert world.merger.accept(offer, path) is None


def test_a_full_disk_at_theta0(make_world, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    world = make_world(tmp_path, seeded=False)
    path = tmp_path / "seed"
    seed = world.seed_message(path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StateError, match=r"theta\(0\) could not be written"):
            world.merger.accept_seed(seed, path)
    assert world.merger.needs_seed
    assert world.generations() == []
    world.merger.accept_seed(seed, path)
    assert world.generations() == ["round-000000"]
