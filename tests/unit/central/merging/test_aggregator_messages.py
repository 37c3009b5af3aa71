"""Seeds, offers, invitations: what is let in, what is refused with which words, what goes down."""

import os

import pytest
import torch

from pww.errors import PayloadError, Refused, StateError
from pww.transport.payload import PayloadReader
from pww.transport.tensorfile import TensorReader, state_hash
from pww.wire import model_digest

SHAPES = {"embed.weight": (40, 3), "scale": (), "last.weight": (7,)}


@pytest.fixture
def empty(make_world, tmp_path):
    return make_world(tmp_path, seeded=False)


def test_theta0_is_published_bit_for_bit(empty, delta_of):
    path = empty.folder / "seed"
    seed = empty.seed_message(path)
    assert empty.merger.needs_seed
    empty.merger.accept_seed(seed, path)
    assert not empty.merger.needs_seed
    assert empty.merger.published.current.theta.read_bytes() == path.read_bytes()
    assert (empty.books.round, empty.books.generation) == (0, "round-000000")
    assert empty.books.state_hash == state_hash(path)
    with TensorReader(
        empty.merger.published.current.theta.with_name("momentum.safetensors")
    ) as momentum:
        assert all(not momentum.get(name).any() for name in momentum.names)


def test_the_second_seed_is_ignored(empty, delta_of):
    path = empty.folder / "seed"
    empty.merger.accept_seed(empty.seed_message(path), path)
    before = empty.books.state_hash
    other = empty.folder / "other"
    empty.merger.accept_seed(empty.seed_message(other, delta_of(9)), other)
    assert empty.books.state_hash == before == state_hash(empty.merger.published.current.theta)


@pytest.mark.parametrize(
    ("tensors", "change", "text"),
    [
        ({}, {"model": "0" * 64}, "theta.0. holds 3 tensors of model .* registered model 0000"),
        (
            {"scale": torch.tensor(float("inf"))},
            {},
            "theta.0.: tensor scale: 1 of 1 values are nan",
        ),
    ],
)
def test_a_bad_seed_is_refused(empty, delta_of, tensors, change, text):
    path = empty.folder / "seed"
    seed = empty.seed_message(path, delta_of(0) | tensors).model_copy(update=change)
    with pytest.raises(PayloadError, match=text):
        empty.merger.accept_seed(seed, path)
    assert empty.merger.needs_seed
    assert empty.generations() == []


def test_a_damaged_or_rounded_seed_is_refused(empty):
    path = empty.folder / "seed"
    seed = empty.seed_message(path)
    bf16 = seed.payload.model_copy(update={"codec": "bf16"})
    with pytest.raises(PayloadError, match="comes as bf16; only fp32 is exact"):
        empty.merger.accept_seed(seed.model_copy(update={"payload": bf16}), path)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(PayloadError, match=r"theta\(0\) has BLAKE3 .*damaged; send it again"):
        empty.merger.accept_seed(seed, path)


def test_a_seed_of_half_precision_is_refused(empty, delta_of):
    from pww.transport.tensorfile import TensorWriter

    tensors = {name: t.half() for name, t in delta_of(0).items()}
    path = empty.folder / "seed"
    seed = empty.seed_message(path)
    layout = {name: (t.dtype, tuple(t.shape)) for name, t in tensors.items()}
    with TensorWriter(path, layout, {}) as writer:
        for name, tensor in tensors.items():
            writer.add(name, tensor)
        written = writer.close()
    info = seed.payload.model_copy(
        update={"size_bytes": written.size_bytes, "digest": written.digest}
    )
    with pytest.raises(PayloadError, match=r"tensor embed.weight is torch.float16, not fp32"):
        empty.merger.accept_seed(seed.model_copy(update={"payload": info}), path)


def test_a_seed_for_another_run_is_refused(empty):
    path = empty.folder / "seed"
    seed = empty.seed_message(path).model_copy(update={"run": "f" * 32})
    with pytest.raises(Refused, match=r"is for run ffff.* this central serves run") as caught:
        empty.merger.accept_seed(seed, path)
    assert caught.value.code == "wrong_run"


def test_a_seed_of_another_model_than_the_runs_is_refused(empty):
    empty.join("a/x")  # the first to register says what the run trains
    tensors = {"other.weight": torch.ones(2, 3)}
    path = empty.folder / "seed"
    theirs = model_digest({"other.weight": (2, 3)})
    seed = empty.seed_message(path, tensors).model_copy(update={"model": theirs})
    with pytest.raises(Refused, match=f"is of model {theirs}, this run trains model") as caught:
        empty.merger.accept_seed(seed, path)
    assert caught.value.code == "wrong_model"
    assert empty.books.model == model_digest(SHAPES)
    assert empty.books.model in str(caught.value)
    assert empty.merger.needs_seed
    empty.seed()
    assert not empty.merger.needs_seed


def test_nothing_goes_before_theta0(empty, delta_of):
    a = empty.join("a/x")
    offer, path = a.offer(delta_of(1))
    with pytest.raises(Refused, match=r"came before theta\(0\): wait for the seed"):
        empty.merger.accept(offer, path)
    with pytest.raises(StateError, match="has not come yet: start a site, the first one seeds"):
        empty.merger.published.current.theta  # noqa: B018
    with pytest.raises(StateError, match="has not come yet"):
        empty.merger.invitation("a/x", "phase")
    invitation, path = empty.merger.invitation("a/x", "seed")
    assert (invitation.kind, invitation.payload, invitation.state_hash, path) == (
        "seed", None, "", None,
    )  # fmt: skip


def test_an_invitation_describes_the_file_beside_it(world, delta_of):
    a = world.join("a/x")
    first, path = world.merger.invitation("a/x", "phase")
    assert (first.round, first.report, first.verdicts) == (0, None, ())
    a.deliver(delta_of(1))
    report = world.merger.maybe_close()
    second, path = world.merger.invitation("a/x", "phase")
    assert (second.round, second.report) == (1, report)
    assert second.state_hash == state_hash(path)
    assert [v.delta for v in second.verdicts] == [a.prev]
    with TensorReader(path) as reader:
        assert second.payload.codec == "fp32"
        assert (second.payload.size_bytes, second.payload.digest) == (
            reader.size_bytes, reader.digest(),
        )  # fmt: skip


def test_bytes_that_are_not_the_announced_ones_are_asked_for_again(world, delta_of):
    a = world.join("a/x")
    offer, path = a.offer(delta_of(1))
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole + b"\0", b"", whole[:-1] + b"\xff"):
        path.write_bytes(damaged)
        with pytest.raises(PayloadError, match="damaged on the way; send it again"):
            world.merger.accept(offer, path)
        assert (world.payloads(), world.books.staged()) == ([], ())
    with pytest.raises(PayloadError, match="came without payload: send it again"):
        world.merger.accept(offer, None)
    path.write_bytes(whole)
    assert world.merger.accept(offer, path) is None
    assert world.merger.maybe_close().merged == ("a/x",)


def test_an_unknown_codec_is_rejected_with_the_known_ones(world, delta_of):
    a = world.join("a/x")
    offer, path = a.offer(delta_of(1))
    info = offer.payload.model_copy(update={"codec": "zip"})
    verdict = world.merger.accept(offer.model_copy(update={"payload": info}), path)
    assert verdict.reason.startswith("codec 'zip' is not known here (known: fp32, bf16, fp16, ")


def test_a_strangers_offer_leaves_nothing(world, delta_of):
    a = world.join("a/x")
    offer, path = a.offer(delta_of(1))
    verdict = world.merger.accept(offer.model_copy(update={"incarnation": "e" * 32}), path)
    assert verdict.outcome == "rejected"
    assert world.payloads() == []


def test_an_id_names_one_delta(world, delta_of):
    a = world.join("a/x")
    offer, path = a.offer(delta_of(1))
    world.merger.accept(offer, path)
    with pytest.raises(Refused, match="was received before with other content"):
        world.merger.accept(offer.model_copy(update={"tokens": 7}), path)
    assert world.payloads() == [f"{offer.delta}.payload"]


def test_a_lost_payload_of_a_staged_delta_may_come_again(world, delta_of):
    a = world.join("a/x")
    offer, path = a.offer(delta_of(1))
    world.merger.accept(offer, path)
    (world.state / "deltas" / f"{offer.delta}.payload").unlink()
    assert world.merger.accept(offer, path) is None
    with PayloadReader(world.state / "deltas" / f"{offer.delta}.payload", offer.payload) as reader:
        assert set(reader.shapes) == set(delta_of(1))
    assert world.merger.maybe_close().merged == ("a/x",)
    assert os.path.exists(path)  # the caller's file stays the caller's
