"""How a site gets theta with as few bytes as it can, and what happens when they are wrong."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from pww.codec import codec_named
from pww.errors import CentralError, PayloadError, PwwError, Refused, StateError
from pww.federation.records import describe
from pww.replica.thetas import Thetas
from pww.transport.payload import PayloadReader, write_payload, write_theta
from pww.transport.tensorfile import TensorReader, state_hash
from pww.wire import Invitation, PayloadInfo, Update

SHAPES: Mapping[str, tuple[int, ...]] = {"w": (60, 100), "b": (3,)}
INT8 = codec_named("int8")


class Run:
    """The central's files of a few rounds, made without its code: theta minus what is decoded."""

    def __init__(self, folder: Path, rounds: int = 3) -> None:
        self.folder = folder
        folder.mkdir()
        self.updates: list[Update] = []
        theta = self._random(0)
        self._write(0, theta)
        for number in range(1, rounds + 1):
            path = self.update(number)
            info = write_payload(path, self._random(number).items(), SHAPES, INT8)
            with PayloadReader(path, info) as reader:
                theta = {name: theta[name] - reader.tensor(name) for name in SHAPES}
            self._write(number, theta)
            self.updates.append(
                Update(round=number, state_hash=state_hash(self.theta(number)), payload=info)
            )

    def _random(self, seed: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}

    def _write(self, number: int, theta: Mapping[str, torch.Tensor]) -> None:
        write_theta(self.theta(number), theta.items(), SHAPES)

    def theta(self, number: int) -> Path:
        return self.folder / f"theta-{number}"

    def update(self, number: int) -> Path:
        return self.folder / f"update-{number}"

    def invitation(self, number: int, **changes: object) -> Invitation:
        return Invitation(
            kind="phase", run="0" * 32, round=number, state_hash=state_hash(self.theta(number)),
            committed_windows=0, payload=describe(self.theta(number), codec="fp32"), verdicts=(),
            report=None, updates=tuple(self.updates[:number]), beside="nothing",
        ).model_copy(update=changes)  # fmt: skip


class Store:
    """Where a site downloads from; it remembers what was asked for."""

    def __init__(self, run: Run) -> None:
        self._files = {
            describe(path, codec="x").digest: path
            for path in run.folder.iterdir()
        }  # fmt: skip
        self.fetched: list[str] = []
        self.spoil = ""

    def fetch(self, info: PayloadInfo, path: Path) -> None:
        source = self._files[info.digest]
        self.fetched.append(source.name)
        path.write_bytes(source.read_bytes())


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run")


@pytest.fixture
def store(run: Run) -> Store:
    return Store(run)


@pytest.fixture
def thetas(tmp_path: Path, store: Store) -> Thetas:
    return Thetas(tmp_path / "theta", fetch=store.fetch)


def same(path: Path, other: Path) -> bool:
    with TensorReader(path) as one, TensorReader(other) as two:
        return all(torch.equal(one.get(name), two.get(name)) for name in SHAPES)


def test_in_the_steady_state_one_update_comes(run: Run, store: Store, thetas: Thetas) -> None:
    first = thetas.receive(run.invitation(0, beside="theta"), run.theta(0).read_bytes())
    assert first.received_bytes == run.theta(0).stat().st_size
    for number in (1, 2, 3):
        data = run.update(number).read_bytes()
        theta = thetas.receive(run.invitation(number, beside="update"), data)
        assert theta.received_bytes == len(data) < first.received_bytes / 3
        assert same(theta.path, run.theta(number))
        assert theta.path.read_bytes() == run.theta(number).read_bytes()
    assert store.fetched == []
    assert (thetas.came.whole, thetas.came.updates, thetas.came.repairs) == (1, 3, 0)


def test_the_same_round_again_costs_nothing(run: Run, store: Store, thetas: Thetas) -> None:
    thetas.receive(run.invitation(2, beside="theta"), run.theta(2).read_bytes())
    again = thetas.receive(run.invitation(2), None)
    assert again.received_bytes == 0
    assert store.fetched == []


def test_a_site_that_is_behind_applies_updates_one_by_one(
    run: Run, store: Store, thetas: Thetas
) -> None:
    thetas.receive(run.invitation(0, beside="theta"), run.theta(0).read_bytes())
    theta = thetas.receive(run.invitation(3), None)
    assert store.fetched == ["update-1", "update-2", "update-3"]
    assert same(theta.path, run.theta(3))


def test_a_joiner_downloads_theta_whole(run: Run, store: Store, thetas: Thetas) -> None:
    theta = thetas.receive(run.invitation(3), None)
    assert store.fetched == ["theta-3"]
    assert same(theta.path, run.theta(3))


def test_theta_comes_whole_where_the_updates_would_be_larger(
    run: Run, store: Store, thetas: Thetas
) -> None:
    thetas.receive(run.invitation(0, beside="theta"), run.theta(0).read_bytes())
    small = run.invitation(3).payload.model_copy(  # type: ignore[union-attr]
        update={"size_bytes": sum(one.payload.size_bytes for one in run.updates)}
    )
    with pytest.raises(KeyError):  # it asks for the whole: of a digest that nobody has
        thetas.receive(
            run.invitation(3, payload=small.model_copy(update={"digest": "0" * 64})), None
        )


def test_a_gap_in_the_chain_means_the_whole(run: Run, store: Store, thetas: Thetas) -> None:
    thetas.receive(run.invitation(0, beside="theta"), run.theta(0).read_bytes())
    thetas.receive(run.invitation(3, updates=tuple(run.updates[1:])), None)
    assert store.fetched == ["theta-3"]


@pytest.mark.parametrize("how", ["base", "update", "hash"])
def test_whatever_is_wrong_the_outcome_is_the_centrals(
    run: Run, store: Store, thetas: Thetas, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """A base that changed on the disk, an update that is another one, a hash that differs."""
    here = thetas.receive(run.invitation(1, beside="theta"), run.theta(1).read_bytes())
    told, data = run.invitation(2, beside="update"), run.update(2).read_bytes()
    match how:
        case "base":
            changed = bytearray(here.path.read_bytes())
            changed[-1] ^= 1
            here.path.write_bytes(bytes(changed))
        case "update":
            data = run.update(3).read_bytes()
        case "hash":
            wrong = run.updates[1].model_copy(update={"state_hash": "0" * 64})
            told = told.model_copy(update={"updates": (run.updates[0], wrong)})
    theta = thetas.receive(told, data)
    assert same(theta.path, run.theta(2))
    assert store.fetched == ["theta-2"]
    assert thetas.came.repairs == 1
    assert "theta of round 2 has state hash" in caplog.text
    assert "it is downloaded whole" in caplog.text


def test_an_update_that_is_gone_at_the_central_means_the_whole(
    run: Run, store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fetch(info: PayloadInfo, path: Path) -> None:
        if info.codec != "fp32":
            raise CentralError("no such object")
        store.fetch(info, path)

    thetas = Thetas(tmp_path / "theta", fetch=fetch)
    thetas.receive(run.invitation(1, beside="theta"), run.theta(1).read_bytes())
    assert same(thetas.receive(run.invitation(3), None).path, run.theta(3))
    assert store.fetched == ["theta-3"]
    assert "the update of round 2 cannot be had: no such object" in caplog.text
    assert thetas.came.repairs == 0


def test_who_is_refused_does_not_try_the_whole(run: Run, tmp_path: Path) -> None:
    def fetch(info: PayloadInfo, path: Path) -> None:
        raise Refused("revoked", code="unauthorised")

    thetas = Thetas(tmp_path / "theta", fetch=fetch)
    thetas.receive(run.invitation(1, beside="theta"), run.theta(1).read_bytes())
    with pytest.raises(Refused, match="revoked"):
        thetas.receive(run.invitation(3), None)


def test_an_update_that_is_no_payload_is_named(
    run: Run, store: Store, thetas: Thetas, caplog: pytest.LogCaptureFixture
) -> None:
    thetas.receive(run.invitation(1, beside="theta"), run.theta(1).read_bytes())
    theta = thetas.receive(run.invitation(2, beside="update"), b"rubbish")
    assert same(theta.path, run.theta(2))
    assert "the update of round 2 cannot be used" in caplog.text


def test_a_new_process_goes_on_from_the_file_that_is_here(
    run: Run, store: Store, thetas: Thetas, tmp_path: Path
) -> None:
    thetas.receive(run.invitation(1, beside="theta"), run.theta(1).read_bytes())
    (tmp_path / "theta" / "update-000002.payload").write_bytes(b"left by a crash")
    another = Thetas(tmp_path / "theta", fetch=store.fetch)
    assert not list((tmp_path / "theta").glob("*.payload*"))
    assert same(another.receive(run.invitation(3), None).path, run.theta(3))
    assert store.fetched == ["update-2", "update-3"]


def test_a_file_that_was_damaged_meanwhile_is_no_theta(
    run: Run, store: Store, thetas: Thetas, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    here = thetas.receive(run.invitation(2, beside="theta"), run.theta(2).read_bytes())
    here.path.write_bytes(here.path.read_bytes()[:-5])
    another = Thetas(tmp_path / "theta", fetch=store.fetch)
    assert same(another.receive(run.invitation(2), None).path, run.theta(2))
    assert store.fetched == ["theta-2"]
    assert "cannot be used" in caplog.text


def test_without_downloads_a_lost_base_says_what_to_do(run: Run, tmp_path: Path) -> None:
    thetas = Thetas(tmp_path / "theta", fetch=None)
    with pytest.raises(StateError, match="cannot be downloaded from this central: start this run"):
        thetas.receive(run.invitation(2, beside="update"), run.update(2).read_bytes())


def test_theta_that_is_not_the_announced_one_is_refused(run: Run, thetas: Thetas) -> None:
    with pytest.raises(PayloadError, match="its tensors are not the central's"):
        thetas.receive(run.invitation(2, beside="theta"), run.theta(1).read_bytes())
    with pytest.raises(PayloadError, match="theta of round 2 does not come as fp32"):
        thetas.receive(run.invitation(2, payload=None), None)


def test_a_full_disk_is_told_and_the_files_stay(
    run: Run, thetas: Thetas, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = thetas.receive(run.invitation(1, beside="theta"), run.theta(1).read_bytes())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pww.replica.thetas.write_durably", full)
    with pytest.raises(PwwError, match=r"cannot write to .*No space left on device. Free space"):
        thetas.receive(run.invitation(2, beside="update"), run.update(2).read_bytes())
    assert here.path.exists()


def test_two_thetas_stay(run: Run, thetas: Thetas, tmp_path: Path) -> None:
    thetas.receive(run.invitation(0, beside="theta"), run.theta(0).read_bytes())
    thetas.receive(run.invitation(3), None)
    assert sorted(path.name for path in (tmp_path / "theta").iterdir()) == [
        "theta-000002.safetensors", "theta-000003.safetensors",
    ]  # fmt: skip


def test_far_behind_the_disk_holds_three_thetas_at_most(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", rounds=6)
    store, most = Store(run), 0

    def fetch(info: PayloadInfo, path: Path) -> None:
        nonlocal most
        store.fetch(info, path)
        most = max(most, len(list(path.parent.glob("theta-*"))))

    thetas = Thetas(tmp_path / "theta", fetch=fetch)
    thetas.receive(run.invitation(0, beside="theta"), run.theta(0).read_bytes())
    whole = run.invitation(6).payload
    assert whole is not None
    large = whole.model_copy(update={"size_bytes": 1 << 40})
    theta = thetas.receive(run.invitation(6, payload=large), None)
    assert same(theta.path, run.theta(6))
    assert (thetas.came.updates, most) == (6, 2)


def test_a_download_that_theta_moved_on_from_leaves_nothing(
    run: Run, store: Store, tmp_path: Path
) -> None:
    def fetch(info: PayloadInfo, path: Path) -> None:
        if path.name == "theta-000002.safetensors":
            for suffix in (".part", ".done"):
                path.with_name(path.name + suffix).write_bytes(b"half of it")
            raise CentralError("it is not there any more")
        store.fetch(info, path)

    thetas = Thetas(tmp_path / "theta", fetch=fetch)
    with pytest.raises(CentralError, match="not there any more"):
        thetas.receive(run.invitation(2), None)
    thetas.receive(run.invitation(3), None)
    assert [path.name for path in (tmp_path / "theta").iterdir()] == ["theta-000003.safetensors"]
