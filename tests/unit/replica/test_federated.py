"""What a replica does with invitations, good and bad; the fleet is a list that the test writes."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flwr.app import RecordDict

from pww.clock import ManualClock
from pww.errors import CentralError, PayloadError, PwwError, Refused, Stopped
from pww.federation.fleet_client import NotAdmitted
from pww.federation.records import REPLY, describe, pack, pack_payload, unpack
from pww.replica.federated import FederatedExchange
from pww.transport.carrier import Transfers
from pww.transport.payload import write_theta
from pww.transport.tensorfile import state_hash
from pww.wire import Invitation, Leased, Offer, PayloadInfo, PhaseMetrics, Seed, Span, Verdict

RUN, INCARNATION, MODEL = "0" * 32, "1" * 32, "2" * 64


class Fleet:
    """Hands out what it was given, in order, and keeps what it was sent."""

    def __init__(self) -> None:
        self.coming: list[Any] = []
        self.sent: list[RecordDict] = []
        self.takes: list[bool] = []
        self.num_doubts = self.num_retries = 0
        self.is_closed = False

    def receive(self) -> Any:
        if not self.coming:
            return None
        item = self.coming.pop(0)
        if isinstance(item, Exception):
            raise item
        return SimpleNamespace(content=item)

    def reply(self, to: Any, content: RecordDict) -> bool:
        self.sent.append(content)
        return self.takes.pop(0) if self.takes else True

    def ask_again(self) -> None:
        self.num_doubts += 1

    def close(self) -> None:
        self.is_closed = True


class Site:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fleet = Fleet()
        self.clock = ManualClock()
        self.stop = threading.Event()
        self.num_registered = 0
        self.refusal: Refused | None = None
        self.seed = self.theta_file(9.0)
        self.exchange = FederatedExchange(
            self.fleet,  # type: ignore[arg-type]
            run=RUN, replica="s/a", incarnation=INCARNATION, model=MODEL, seed=self.seed,
            folder=folder / "theta", limit_mb=1, poll_s=1.0, clock=self.clock, stop=self.stop,
            reregister=self._register, check=self._check,
        )  # fmt: skip

    def _register(self) -> None:
        self.num_registered += 1

    def _check(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def theta_file(self, value: float, size: int = 4) -> Path:
        path = self.folder / f"made-{value}-{size}"
        write_theta(path, [("w", torch.full((size,), value))], {"w": (size,)})
        return path

    def phase(self, number: int, *verdicts: Verdict, **changes: Any) -> RecordDict:
        path = self.theta_file(float(number))
        invitation = Invitation(
            committed_windows=0,
            kind="phase", run=RUN, round=number, state_hash=state_hash(path),
            payload=describe(path, codec="fp32"), verdicts=verdicts, report=None,
        ).model_copy(update=changes)  # fmt: skip
        return pack(invitation, pack_payload(path, describe(path, codec="fp32"), limit_mb=1))

    def offer(self, delta: str = "a" * 32, **changes: Any) -> tuple[Offer, Path]:
        path = self.theta_file(0.5)
        metrics = PhaseMetrics(steps=1, tokens=7, loss=1.0, phase_seconds=1.0, tokens_per_s=7.0)
        offer = Offer(
            run=RUN, replica="s/a", incarnation=INCARNATION, delta=delta, prev="", base_round=0,
            base_hash="f" * 64,
            spans=(Leased(lease=1, span=Span(0, 1)),), tokens=7, partial=False, finite=True,
            payload=describe(path, codec="fp32"), metrics=metrics,
        )  # fmt: skip
        return offer.model_copy(update=changes), path


def merged(delta: str = "a" * 32) -> Verdict:
    return Verdict(delta=delta, outcome="merged", round=1)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_pull_keeps_the_invitation_that_push_brought(site: Site) -> None:
    site.fleet.coming = [site.phase(0), site.phase(1, merged())]
    assert site.exchange.pull().round == 0
    assert site.exchange.push(*site.offer()) == merged()
    assert site.exchange.pull().round == 1
    assert site.exchange.pull(1).round == 1
    assert site.clock.monotonic() == 0.0
    message, data = unpack(site.fleet.sent[0], REPLY, limit_mb=1)
    assert (message, data) == (site.offer()[0], site.offer()[1].read_bytes())


def test_without_a_verdict_the_same_delta_is_offered_again(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.fleet.coming = [site.phase(0), site.phase(0), site.phase(1), site.phase(1, merged())]
    site.fleet.takes = [False, True, True]
    site.exchange.pull()
    with caplog.at_level(logging.INFO, "pww.replica.federated"):
        assert site.exchange.push(*site.offer()) == merged()
    assert len(site.fleet.sent) == 3
    assert "the delta is offered again" in caplog.text
    assert site.exchange.counts["retries"] == 1, "the one that was not taken"


class Carrier:
    """Brings what it is told to, and says how often it was."""

    def __init__(self) -> None:
        self.brought: list[PayloadInfo] = []

    def put(self, path: Path, info: PayloadInfo) -> None:
        self.brought.append(info)  # the second time it is there already

    def get(self, info: PayloadInfo, path: Path) -> None:
        raise AssertionError("theta lies beside its message")

    def transfers(self) -> Transfers:
        return Transfers(retries=5, bytes_up=sum(one.size_bytes for one in self.brought[:1]))


@pytest.mark.parametrize("carried", [True, False])
def test_what_the_central_has_is_not_sent_again(
    site: Site, caplog: pytest.LogCaptureFixture, carried: bool
) -> None:
    """The answer got lost, or the central was started again: only the offer goes out."""
    offer, path = site.offer()
    carrier = site.exchange._carrier = Carrier()  # type: ignore[assignment]
    site.exchange._inline_mb = 0 if carried else 1
    held = {"staged": ("f" * 32, offer.delta)}
    site.fleet.coming = [
        site.phase(0), site.phase(0, **held), site.phase(0), site.phase(1, merged()),
    ]  # fmt: skip
    site.exchange.pull()
    with caplog.at_level(logging.INFO, "pww.replica.federated"):
        assert site.exchange.push(offer, path) == merged()
    sent = [unpack(content, REPLY, limit_mb=1) for content in site.fleet.sent]
    assert [len(carrier.brought), len(sent)] == [2 * carried, 3]
    assert [message.carried for message, _ in sent] == [carried, True, carried]
    assert [data is None for _, data in sent] == [carried, True, carried]
    assert caplog.text.count("its payload is not sent again") == 1
    size_bytes = offer.payload.size_bytes
    assert site.exchange.sent_bytes == (size_bytes if carried else 2 * size_bytes)


class Unlucky(Carrier):
    """Twice nothing of it gets there within the deadline."""

    def put(self, path: Path, info: PayloadInfo) -> None:
        super().put(path, info)
        if len(self.brought) < 3:
            raise CentralError("no usable answer within 600 s")


def test_a_payload_that_is_brought_once_more_is_a_repeat(site: Site) -> None:
    offer, path = site.offer()
    carrier = site.exchange._carrier = Unlucky()  # type: ignore[assignment]
    site.fleet.coming = [site.phase(0), site.phase(1, merged())]
    assert site.exchange.push(offer, path) == merged()
    assert len(carrier.brought) == 3
    assert site.exchange.counts["retries"] == 2 + carrier.transfers().retries


def test_what_an_earlier_process_sent_is_not_counted_again(site: Site) -> None:
    offer, path = site.offer()
    site.fleet.coming = [site.phase(0, staged=(offer.delta,)), site.phase(1, merged())]
    assert site.exchange.push(offer, path) == merged()
    assert site.exchange.sent_bytes == 0
    other, path = site.offer("b" * 32)
    site.fleet.coming = [site.phase(1), site.phase(2, merged(other.delta))]
    site.fleet.takes = [False, True]
    assert site.exchange.push(other, path) == merged(other.delta)
    assert site.exchange.sent_bytes == other.payload.size_bytes, "what was taken"


def test_what_was_done_is_counted_by_name(site: Site) -> None:
    site.fleet.num_retries = 2
    site.fleet.coming = [site.phase(0), site.phase(1)]
    assert site.exchange.counts == {
        "retries": 2, "theta_whole": 0, "theta_updates": 0, "theta_repairs": 0,
    }  # fmt: skip
    site.exchange.pull()
    site.exchange.pull(1)
    site.exchange._carrier = Carrier()  # type: ignore[assignment]
    assert site.exchange.counts == {
        "retries": 7, "theta_whole": 2, "theta_updates": 0, "theta_repairs": 0,
    }  # fmt: skip


def test_a_verdict_that_is_known_needs_no_sending(site: Site) -> None:
    site.fleet.coming = [site.phase(3, merged())]
    assert site.exchange.push(*site.offer()) == merged()
    assert site.fleet.sent == []
    assert site.exchange.push(*site.offer()) == merged()


def test_theta_of_an_old_round_is_given_up(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.fleet.coming = [site.phase(0), site.phase(1), site.phase(4)]
    site.exchange.pull()
    assert site.exchange.pull(3).round == 4
    assert site.fleet.num_doubts == 2
    assert "the aggregator is at round 1, round 3 is known to exist" in caplog.text


def test_two_theta_files_stay(site: Site) -> None:
    for number in (0, 1, 2, 7):
        site.fleet.coming = [site.phase(number)]
        theta = site.exchange.pull(number)
        assert state_hash(theta.path) == theta.state_hash
    names = sorted(path.name for path in (site.folder / "theta").iterdir())
    assert names == ["theta-000002.safetensors", "theta-000007.safetensors"]


def test_a_seed_is_answered_and_waited_on(site: Site) -> None:
    blank = Invitation(
        kind="seed",
        committed_windows=0,
        run=RUN,
        round=0,
        state_hash="",
        payload=None,
        verdicts=(),
        report=None,
    )
    site.fleet.coming = [pack(blank, None), site.phase(0)]
    assert site.exchange.pull().round == 0
    seed, data = unpack(site.fleet.sent[0], REPLY, limit_mb=1)
    info = describe(site.seed, codec="fp32")
    assert seed == Seed(run=RUN, replica="s/a", incarnation=INCARNATION, model=MODEL, payload=info)
    assert data == site.seed.read_bytes()


def test_a_seed_over_the_limit_ends_the_run_with_the_remedy(site: Site) -> None:
    site.exchange._seed = site.theta_file(9.0, size=300_000)
    blank = Invitation(
        kind="seed",
        committed_windows=0,
        run=RUN,
        round=0,
        state_hash="",
        payload=None,
        verdicts=(),
        report=None,
    )
    site.fleet.coming = [pack(blank, None)]
    with pytest.raises(PayloadError, match=r"1\.2 MB cannot travel.*limit_mb=1"):
        site.exchange.pull()


def test_a_delta_over_the_limit_is_refused_before_anything_is_sent(site: Site) -> None:
    path = site.theta_file(1.0, size=300_000)
    offer, _ = site.offer(payload=describe(path, codec="fp32"))
    with pytest.raises(PayloadError, match="cannot travel"):
        site.exchange.push(offer, path)
    assert site.fleet.sent == []


def test_another_run_is_refused(site: Site) -> None:
    site.fleet.coming = [site.phase(0, run="f" * 32)]
    with pytest.raises(Refused, match=r"serves run f{32}, this replica belongs to run 0{32}") as no:
        site.exchange.pull()
    assert no.value.code == "wrong_run"


def bad_hash(site: Site) -> Any:
    return site.phase(0, state_hash="e" * 64)


def bad_codec(site: Site) -> Any:
    info = describe(site.theta_file(0.0), codec="int4")
    return site.phase(0, payload=info)


def no_message(site: Site) -> Any:
    return RecordDict()


def not_unpacked(site: Site) -> Any:
    return PayloadError("an instruction cannot be unpacked: x")


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (bad_hash, f"the central's is {'e' * 64}: its tensors are not the central's"),
        (bad_codec, "does not come as fp32"),
        (no_message, "not a message of pww"),
        (not_unpacked, "cannot be unpacked"),
    ],
)
def test_a_bad_invitation_is_named_and_another_one_asked_for(
    site: Site, caplog: pytest.LogCaptureFixture, bad: Callable[[Site], Any], text: str
) -> None:
    site.fleet.coming = [bad(site), site.phase(1)]
    assert site.exchange.pull().round == 1
    assert text in caplog.text
    assert site.fleet.num_doubts == 1
    assert site.exchange.counts["retries"] == 1
    assert len(list((site.folder / "theta").iterdir())) == 1


def test_a_full_disk_says_where(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pww.replica.thetas.write_durably", full)
    site.fleet.coming = [site.phase(0)]
    with pytest.raises(PwwError, match=r"cannot write to .*theta: No space left.*resume"):
        site.exchange.pull()


def test_a_lost_registration_is_renewed(site: Site) -> None:
    site.fleet.coming = [NotAdmitted(), NotAdmitted(), site.phase(0)]
    site.exchange.pull()
    assert site.num_registered == 2
    assert site.exchange.counts["retries"] == 2


def test_a_long_wait_speaks_less_and_less_often(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.fleet.coming = [None] * 0
    seconds: list[float] = []

    def receive() -> Any:
        if site.clock.monotonic() >= 400.0:
            site.stop.set()

    site.fleet.receive = receive  # type: ignore[method-assign]
    with (
        caplog.at_level(logging.INFO, "pww.replica.federated"),
        pytest.raises(Stopped, match="stopped while waiting for theta of round 3"),
    ):
        site.exchange.pull(3)
    for record in caplog.records:
        seconds.append(float(record.getMessage().rsplit(" ", 2)[1]))
    assert seconds == [10.0, 30.0, 70.0, 150.0, 270.0, 390.0]


def test_after_a_stop_a_finished_delta_is_still_sent_once(site: Site) -> None:
    site.fleet.coming = [site.phase(0)]
    site.exchange.pull()
    site.stop.set()
    with pytest.raises(Stopped, match="waiting for the verdict of the delta from round 0"):
        site.exchange.push(*site.offer())
    assert len(site.fleet.sent) == 1
    site.exchange.close()
    assert site.fleet.is_closed


def test_a_replica_that_was_refused_does_not_wait_for_ever(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.refusal = Refused("this central does not know you: start again", code="wrong_run")
    with pytest.raises(Refused, match="does not know you"):
        site.exchange.pull()


def test_an_instruction_that_a_lost_request_took_is_asked_for_again_every_minute(
    site: Site,
) -> None:
    asked: list[float] = []

    def ask_again() -> None:
        asked.append(site.clock.monotonic())
        if len(asked) == 2:
            site.fleet.coming.append(site.phase(0))

    site.fleet.ask_again = ask_again  # type: ignore[method-assign]
    assert site.exchange.pull().round == 0
    assert asked == [60.0, 120.0], "not sooner: each time the central makes a new instruction"
