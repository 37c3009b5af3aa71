"""Every message as bytes: round trips, and nothing but the exact shape is taken."""

import inspect
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pww import wire
from pww.wire import (
    Acquired,
    DeviceMfu,
    Exhausted,
    Gauges,
    Granted,
    HeldOutSet,
    Invitation,
    Lease,
    Leased,
    Message,
    Offer,
    PayloadInfo,
    PhaseMetrics,
    Register,
    RoundReport,
    SpaceInfo,
    Span,
    Verdict,
    Wait,
    model_digest,
)

LEASE = Lease(id=3, replica="lumi/a", span=Span(2, 5), watermark=5, ttl_s=60.0)
SPACE = SpaceInfo(
    num_windows=9, block_windows=2, window_tokens=65, seed=0, epochs=1, permutation="p1",
    corpus="c" * 64, digest="d" * 64,
)  # fmt: skip
PAYLOAD = PayloadInfo(codec="fp32", size_bytes=10, digest="a" * 64)
VERDICT = Verdict(delta="1" * 32, outcome="merged", round=4)
METRICS = PhaseMetrics(steps=10, tokens=80, loss=2.5, phase_seconds=1.5, tokens_per_s=53.3)
GAUGES = Gauges(
    device="H100", ranks=4, flops_per_s=1e14, peak_flops_per_s=4e15, memory_bytes=10**10,
    wait_seconds=1.0, exchange_seconds=2.0, bytes_up=7, bytes_down=8, up_bytes_per_s=1e6,
    down_bytes_per_s=2e6,
)  # fmt: skip
REPORT = RoundReport(
    round=4, merged=("lumi/a",), rejected=("snellius/b: late",), tokens=80, loss=2.5,
    delta_norm=1.0, avg_delta_norm=1.0, agreement=1.0, drift_mean=0.1, drift_max=0.1,
    bytes_received=10, merge_seconds=0.5,
)  # fmt: skip
WHO = {"replica": "lumi/a", "incarnation": "2" * 32}
MESSAGES: list[Message] = [
    LEASE, SPACE, PAYLOAD, VERDICT, METRICS, REPORT, GAUGES,
    HeldOutSet(name="wiki", loss=3.5, tokens=99), DeviceMfu(device="H100", mfu=0.4),
    METRICS.model_copy(
        update={"gauges": GAUGES, "held_out_sets": (HeldOutSet(name="w", loss=1.0, tokens=9),)}
    ),
    REPORT.model_copy(update={"mfu": (DeviceMfu(device="A100", mfu=0.3),), "tokens_per_s": 5.0}),
    wire.Refusal(code="closed", message="the run is complete", retry_after_s=1.0),
    Register(
        **WHO, node_key="pem", run="", space=SPACE, model="b" * 64, last_round=3, leases=(3,),
        deltas=("1" * 32,), versions={"torch": "2.13.0"},
    ),
    wire.Registered(
        run="3" * 32, round=4, aggregator_port=29511, heartbeat_s=3.0, detect_s=10.0,
        leases=(LEASE,),
    ),
    wire.Acquire(**WHO, key="4" * 32, num_blocks=2, ttl_s=30.0),
    Granted(lease=LEASE),
    Wait(retry_after_s=0.5),
    Exhausted(committed=9, quarantined=(1, 2)),
    Acquired(answer=Granted(lease=LEASE), round=4),
    Acquired(answer=Wait(retry_after_s=0.5), round=4),
    Acquired(answer=Exhausted(committed=9), round=4),
    wire.Renewal(id=3, ttl_s=30.0),
    wire.Heartbeat(**WHO, leases=(wire.Renewal(id=3, ttl_s=30.0),), windows_per_s=2.0),
    wire.LeaseState(id=3, valid=True, stop=5, watermark=5),
    wire.Instruction(
        leases=(wire.LeaseState(id=3, valid=False, stop=5, watermark=5),), round=4
    ),
    wire.Release(**WHO, leases=(3,)),
    wire.Leave(**WHO, keep=(3,)),
    wire.Done(),
    Leased(lease=3, span=Span(2, 5)),
    Offer(
        **WHO, run="3" * 32, delta="1" * 32, prev="", base_round=4,
        base_hash="e" * 64,
        spans=(Leased(lease=3, span=Span(2, 5)),), tokens=80, partial=False, finite=True,
        payload=PAYLOAD, metrics=METRICS,
    ),
    wire.Seed(**WHO, run="3" * 32, model="b" * 64, payload=PAYLOAD),
    wire.Update(round=4, state_hash="e" * 64, payload=PAYLOAD),
    wire.Carriage(codec="int8", feedback=True, inline_mb=64, blob_port=29512),
    Invitation(
        committed_windows=0,
        kind="phase", run="3" * 32, round=4, state_hash="e" * 64, payload=PAYLOAD,
        verdicts=(VERDICT,), report=REPORT,
    ),
    Invitation(
        committed_windows=0,
        kind="seed", run="3" * 32, round=0, state_hash="", payload=None, verdicts=(), report=None
    ),
]  # fmt: skip


def tree(message: Message) -> Any:
    return json.loads(message.model_dump_json())


def again(kind: type[Message], values: Any) -> Message:
    return kind.model_validate_json(json.dumps(values))


def refused(kind: type[Message], values: Any) -> str:
    with pytest.raises(ValidationError) as fault:
        again(kind, values)
    return str(fault.value)


def paths(values: Any, path: tuple = ()) -> list[tuple]:
    """The way to every value in a tree."""
    if isinstance(values, dict):
        pairs = list(values.items())
    else:
        pairs = list(enumerate(values)) if isinstance(values, list) else []
    return [p for key, value in pairs for p in [(*path, key), *paths(value, (*path, key))]]


def changed(values: Any, path: tuple, value: object) -> Any:
    copy = json.loads(json.dumps(values))
    node = copy
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return copy


# ------------------------------------------------------------------------------- all of them


def test_every_message_of_the_module_is_under_test() -> None:
    kinds = {
        kind for _, kind in inspect.getmembers(wire, inspect.isclass)
        if issubclass(kind, Message) and kind is not Message
    }  # fmt: skip
    assert kinds == {type(message) for message in MESSAGES}


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_what_is_sent_is_what_arrives(message: Message) -> None:
    there = type(message).model_validate_json(message.model_dump_json())
    assert there == message
    assert there.model_dump_json() == message.model_dump_json()
    with pytest.raises(ValidationError):
        message.kind = "other"  # type: ignore[attr-defined]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_an_unknown_key_at_any_depth_is_refused(message: Message) -> None:
    values = tree(message)
    inside = [p for p in paths(values) if isinstance(_at(values, p), dict)]
    for path in [(), *inside]:
        if path and path[-1] == "versions":
            continue  # its keys are names of packages
        text = refused(type(message), changed(values, (*path, "surprise"), 1))
        assert "surprise" in text


def _at(values: Any, path: tuple) -> Any:
    for key in path:
        values = values[key]
    return values


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_nothing_is_coerced(message: Message) -> None:
    """Each value in turn becomes one of another type, a missing key, or a number out of range."""
    values = tree(message)
    for path in paths(values):
        value = _at(values, path)
        others: list[object] = [{"a": 1}, [[]]]
        match value:
            case bool():
                others += [0, "true", None]
            case int():
                others += ["1", 1.5, True, None, -1, 2**63, float("nan")]
            case float():
                others += ["1.5", True, None, float("nan"), float("inf"), 1e300, -1e300]
                if path[-1].endswith(("_s", "seconds")):  # seconds and rates
                    others += [-1.0]
            case str():
                others += [1, True, b"x".hex() * 10**4]
                others += [None]
        for other in others:
            if isinstance(other, str) and path[-1] in FREE_TEXT:
                continue
            text = refused(type(message), changed(values, path, other))
            assert "validation error" in text


FREE_TEXT = {
    "message",
    "reason",
    "state_hash",
    0,
}
"""Strings that are compared or shown and never used as a name (0: who was rejected, and why)."""


def test_numbers_that_are_whole_may_be_written_so() -> None:
    assert again(Lease, tree(LEASE) | {"ttl_s": 60}) == LEASE


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\xff", '{"id":1,"id":2}', "{}" * 2])
def test_what_is_no_json_object_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        Lease.model_validate_json(text.encode("latin1"))


def test_nesting_without_end_is_refused() -> None:
    with pytest.raises(ValidationError):
        Lease.model_validate_json("[" * 100_000)


def test_an_offer_without_a_span_is_refused() -> None:
    offer = next(m for m in MESSAGES if isinstance(m, Offer))
    assert "at least 1 item" in refused(Offer, tree(offer) | {"spans": []})


def test_an_answer_of_no_known_kind_is_refused() -> None:
    assert "tag" in refused(Acquired, {"answer": {"kind": "maybe"}})
    assert "code" in refused(wire.Refusal, {"code": "nope", "message": "x"})


# --------------------------------------------------------------------------------- the names

HOSTILE = [
    "", "/", "a", "a/", "/a", "a/b/c", "../x", "a/..", "./a", "a/.b", "a\\b/c", "A/b", "a/B",
    "a/b\n", "a/b ", " a/b", "a b/c", "a/b\0", "a/é", "a/" + "b" * 33, "a" * 33 + "/b",
    "a/" + "b" * 10_240, "-a/b", "a//b", "a/b\u2028", "a/b\r", "..", "a/%2e%2e",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: repr(name[:12]))
def test_a_hostile_replica_id_is_refused(name: str) -> None:
    refused(Lease, tree(LEASE) | {"replica": name})
    with pytest.raises(ValidationError):
        Lease(id=1, replica=name, span=Span(0, 1), watermark=1, ttl_s=1.0)


@given(st.text(max_size=80))
def test_a_replica_id_is_two_plain_names(text: str) -> None:
    """Independent of the pattern: what passes can be no path, option or line of anything else."""
    try:
        Lease(id=1, replica=text, span=Span(0, 1), watermark=1, ttl_s=1.0)
    except ValidationError:
        return
    for part in (halves := text.split("/")):
        assert 1 <= len(part) <= 32
        assert set(part) <= set("abcdefghijklmnopqrstuvwxyz0123456789_.-")
        assert part[0].isalnum()
    assert len(halves) == 2


@pytest.mark.parametrize("name", ["lumi/a", "a/b", "0/0", "s.x_y-z/" + "b" * 32])
def test_ordinary_ids_pass(name: str) -> None:
    assert again(Lease, tree(LEASE) | {"replica": name}).replica == name


BAD_TOKENS = ["", "1" * 31, "1" * 33, "G" * 32, "A" * 32, "1" * 32 + "\n", "../" + "1" * 29]


@pytest.mark.parametrize("token", BAD_TOKENS)
def test_delta_ids_are_hex_because_they_become_file_names(token: str) -> None:
    refused(Verdict, tree(VERDICT) | {"delta": token})
    digest = token * 2 if len(token) == 32 else token
    refused(PayloadInfo, tree(PAYLOAD) | {"digest": digest})


def test_a_codec_is_a_name() -> None:
    for codec in ("../fp32", "FP32", "fp32\n", "x" * 33, ""):
        refused(PayloadInfo, tree(PAYLOAD) | {"codec": codec})


# ---------------------------------------------------------------------------------- the spans


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 0), (5, 5), (5, 4), (-1, 1), (-2, -1), (0, 2**63), (2**64, 2**65)]
)
def test_a_span_is_neither_empty_nor_negative_nor_without_bounds(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match=r"span \[-?\d+, -?\d+\) is"):
        Span(start, stop)
    text = refused(Leased, {"lease": 1, "span": {"start": start, "stop": stop}})
    assert f"[{start}, {stop})" in text


def test_a_span_is_half_open_and_ordered() -> None:
    assert len(Span(2, 5)) == 3
    assert len(Span(0, 2**62)) == 2**62
    assert sorted([Span(3, 4), Span(0, 9), Span(0, 2)]) == [Span(0, 2), Span(0, 9), Span(3, 4)]


# ------------------------------------------------------------------------------ metrics, model


MEASURED = ["loss", "drift", "delta_norm", "held_out_loss"]


@pytest.mark.parametrize("name", MEASURED)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1.1e30, -1.1e30, 1.7e308])
def test_a_metric_is_a_number_that_can_be_summed(name: str, value: float) -> None:
    with pytest.raises(ValidationError, match=name):
        PhaseMetrics(**(METRICS.model_dump() | {name: value}))
    for fine in (0.0, -1.0, 1e30, -1e30):
        PhaseMetrics(**(METRICS.model_dump() | {name: fine}))


def test_a_report_holds_what_a_merge_of_allowed_values_gives() -> None:
    largest = 3.4028235e38 * math.sqrt(2.0**62)  # every value of a huge model at the end of fp32
    for name in ("loss", "delta_norm", "avg_delta_norm", "agreement", "drift_mean", "drift_max"):
        RoundReport(**(REPORT.model_dump() | {name: largest}))
        for value in (math.nan, math.inf, 1e61):
            with pytest.raises(ValidationError, match=name):
                RoundReport(**(REPORT.model_dump() | {name: value}))


def test_what_a_site_tells_of_itself_has_a_size() -> None:
    register = next(m for m in MESSAGES if isinstance(m, Register))
    for change in (
        {"versions": {f"p{i}": "1" for i in range(33)}},
        {"versions": {"p" * 65: "1"}},
        {"versions": {"p": "1" * 65}},
        {"node_key": "k" * 1001},
        {"space": tree(SPACE) | {"permutation": "p" * 33}},
    ):
        refused(Register, tree(register) | change)
    most = {"versions": {f"{i:064}": "1" * 64 for i in range(32)}, "node_key": "k" * 1000}
    again(Register, tree(register) | most)


@pytest.mark.parametrize("token", [t for t in BAD_TOKENS if t])
def test_a_run_and_a_delta_before_are_tokens_or_none(token: str) -> None:
    register = next(m for m in MESSAGES if isinstance(m, Register))
    offer = next(m for m in MESSAGES if isinstance(m, Offer))
    refused(Register, tree(register) | {"run": token})
    refused(Offer, tree(offer) | {"prev": token})
    again(Register, tree(register) | {"run": "3" * 32})
    again(Offer, tree(offer) | {"prev": "3" * 32})


def test_a_time_to_live_is_a_day_at_most() -> None:
    for kind in (wire.Acquire, wire.Renewal):
        message = next(m for m in MESSAGES if type(m) is kind)
        again(kind, tree(message) | {"ttl_s": 86_400.0})
        refused(kind, tree(message) | {"ttl_s": 86_400.1})


def test_a_metric_of_nan_does_not_survive_the_way() -> None:
    """JSON has no nan: it becomes null, which is refused (the outbox sends none)."""
    metrics = METRICS.model_copy(update={"loss": math.nan})
    with pytest.raises(ValidationError, match="loss"):
        PhaseMetrics.model_validate_json(metrics.model_dump_json())


def test_a_model_is_its_names_and_shapes_in_any_order() -> None:
    shapes = {"b": (3, 4), "a": (), "c": (0,)}
    digest = model_digest(shapes)
    assert digest == model_digest(dict(reversed(shapes.items())))
    assert digest == model_digest({name: list(shape) for name, shape in shapes.items()})
    import hashlib

    assert digest == hashlib.sha256(b"a ()\nb (3, 4)\nc (0,)").hexdigest()


@pytest.mark.parametrize(
    "other",
    [
        {"b": (4, 3), "a": (), "c": (0,)},
        {"b": (3, 4), "a": (1,), "c": (0,)},
        {"b": (3, 4), "a": ()},
        {"b": (12,), "a": (), "c": (0,)},
        {"B": (3, 4), "a": (), "c": (0,)},
        {"b": (3, 4), "a": (), "c": (0,), "d": ()},
    ],
)
def test_another_model_has_another_digest(other: dict) -> None:
    assert model_digest(other) != model_digest({"b": (3, 4), "a": (), "c": (0,)})


def test_the_protocol_is_told() -> None:
    register = next(m for m in MESSAGES if isinstance(m, Register))
    assert tree(register)["protocol"] == wire.PROTOCOL
