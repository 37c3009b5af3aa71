"""What the lab exchanges is what a run exchanges: payloads, residuals, weights, bytes."""

from pathlib import Path

import pytest
import torch

from pww.codec import codec_named
from pww.config.prepare import LAB, prepare
from pww.config.schema.lab import LabConfig
from pww.errors import NotFiniteError
from pww.lab import traffic
from pww.lab.attackers import attack_
from pww.lab.charlm import SIZES
from pww.lab.coding import recoded
from pww.lab.exchange import Exchange, equal
from pww.lab.seeds import generator, seed_of
from pww.lab.stack import places
from pww.replica.residual import Feedback
from pww.transport.payload import PayloadReader, write_payload

CODECS = (
    "fp32", "bf16", "fp16", "int8", "int4", "int2", "sign", "topk-64-b2", "topk-256-b4",
    "topk-41-b8", "topk-4096-b16", "randomk-64", "randomk-100-raw", "dct2-64", "dither-4",
)  # fmt: skip
SHAPES = {"a": (3, 5), "b": (4096,), "c": (2, 4097), "d": (64, 65), "e": (5, 3), "f": (1,)}
SIZE = sum(p.stop - p.start for p in places(SHAPES).values())
TOY = SIZES["toy"].shapes


def config(*words: str) -> LabConfig:
    found = prepare(words, shape=LAB).configs[0]
    assert isinstance(found, LabConfig)
    return found


def rows(workers: int, size: int = SIZE, seed: int = 0) -> torch.Tensor:
    draws = torch.Generator().manual_seed(seed)
    return torch.randn(workers, size, generator=draws) * 1e-3


@pytest.mark.parametrize("name", CODECS)
def test_many_at_once_are_one_after_the_other_to_the_bit(name: str) -> None:
    codec, values = codec_named(name), rows(3)
    before = values.clone()
    tensors = places(SHAPES)

    def seed(row: int, tensor: str) -> int:
        return 1000 * row + ord(tensor)

    found = recoded(codec, values, tensors, seed=seed)
    for number, row in enumerate(values):
        for tensor, place in tensors.items():
            parts = codec.encode(row[place].view(SHAPES[tensor]), seed=seed(number, tensor))
            expected = codec.decode(parts, SHAPES[tensor]).view(-1)
            if codec.exact_decode:
                assert torch.equal(found[number, place], expected)
            else:  # a matrix product of many rows may add in another order
                torch.testing.assert_close(found[number, place], expected, rtol=1e-5, atol=1e-8)
    found.zero_()
    assert torch.equal(values, before)


def payload_of(
    folder: Path, number: int, delta: torch.Tensor, name: str, *, seed: str, feedback: bool
) -> torch.Tensor:
    """What the central decodes of a replica's delta: through the files of a run."""
    before = folder / f"residual-{number}" if number and feedback else None
    after = folder / f"residual-{number + 1}" if feedback else None
    tensors = [(n, delta[p].clone().view(TOY[n])) for n, p in places(TOY).items()]
    with Feedback(TOY, before=before, after=after) as fed:
        info = write_payload(
            folder / "payload", fed.carried(tensors), TOY, codec_named(name), seed=seed,
            lost=fed.keep if feedback else None,
        )  # fmt: skip
    with PayloadReader(folder / "payload", info) as reader:
        return torch.cat([reader.tensor(n).reshape(-1) for n in TOY])


@pytest.mark.parametrize(
    "words",
    [
        ("codec=fp32",),
        ("codec=int4",),
        ("codec=int4", "codec.feedback=false"),
        ("codec=topk", "codec.keep=256"),
        ("codec=sign",),
        ("codec=randomk", "codec.keep=256"),
        ("codec=randomk", "codec.feedback=true"),
        ("codec=dct",),
        ("codec=dither",),
    ],
    ids=lambda words: " ".join(words),
)
def test_four_rounds_are_those_of_a_run_s_payloads(words: tuple[str, ...], tmp_path: Path) -> None:
    """Codec, seed and residual, to the bit, against the production files."""
    made = config("workers=2", *words)
    exchange = Exchange(made, TOY)
    for worker in range(2):
        (tmp_path / str(worker)).mkdir()
    for number in range(4):
        deltas = rows(2, 5376, seed=number)
        sent = exchange.fed_back(deltas.clone(), round_=number, who=range(2), names=list(TOY))
        for worker in range(2):
            expected = payload_of(
                tmp_path / str(worker), number, deltas[worker], made.codec.name,
                seed=f"{made.seed} {worker} {number}", feedback=made.codec.feedback,
            )  # fmt: skip
            if codec_named(made.codec.name).exact_decode:
                assert torch.equal(sent[worker], expected)
            else:
                torch.testing.assert_close(sent[worker], expected, rtol=1e-4, atol=1e-7)


def test_what_was_sent_and_the_residual_are_the_sum_of_the_deltas() -> None:
    exchange = Exchange(config("workers=2", "codec=topk"), TOY)
    deltas = [rows(2, 5376, seed=number) for number in range(10)]
    sent = [
        exchange.fed_back(d, round_=n, who=range(2), names=list(TOY)) for n, d in enumerate(deltas)
    ]
    torch.testing.assert_close(sum(sent) + exchange._residual, sum(deltas), rtol=1e-4, atol=1e-6)


def test_a_residual_decays() -> None:
    """SparseLoCo's: what was lost counts 0.95 as much in the next round."""
    exchange = Exchange(config("workers=1", "method=sparseloco"), TOY, decay=0.95)
    first, second = rows(1, 5376), rows(1, 5376, seed=1)
    lost = first - exchange.fed_back(first, round_=0, who=[0], names=list(TOY))
    wanted = second + lost * 0.95
    sent = exchange.fed_back(second, round_=1, who=[0], names=list(TOY))
    assert torch.equal(exchange._residual, wanted - sent)


def test_who_is_absent_keeps_its_residual() -> None:
    exchange = Exchange(config("workers=3", "codec=int2"), TOY)
    exchange.fed_back(rows(3, 5376), round_=0, who=range(3), names=list(TOY))
    before = exchange._residual.clone()
    exchange.fed_back(rows(2, 5376), round_=1, who=[0, 2], names=list(TOY))
    assert torch.equal(exchange._residual[1], before[1])
    assert not torch.equal(exchange._residual[0], before[0])


def test_a_part_of_the_tensors_is_a_part_of_the_exchange() -> None:
    whole, parts = (Exchange(config("codec=int4"), TOY) for _ in range(2))
    names, deltas = list(TOY), rows(4, 5376)
    cut = places(TOY)[names[3]].start
    sent = whole.fed_back(deltas, round_=0, who=range(4), names=names)
    one = parts.fed_back(deltas[:, :cut], round_=0, who=range(4), names=names[:3])
    other = parts.fed_back(deltas[:, cut:], round_=0, who=range(4), names=names[3:])
    assert torch.equal(torch.cat([one, other], dim=1), sent)
    assert torch.equal(parts._residual, whole._residual)


def test_what_is_no_number_is_refused() -> None:
    for words in (("codec=fp32",), ("codec=int4",), ("codec=randomk",)):
        deltas = rows(4, 5376)
        deltas[2, 7] = torch.nan
        with pytest.raises(NotFiniteError):
            Exchange(config(*words), TOY).fed_back(deltas, round_=0, who=range(4), names=list(TOY))


def test_streams_differ_by_seed_and_purpose_and_repeat() -> None:
    def draw(seed: int, purpose: str) -> float:
        return float(torch.rand(1, generator=generator(seed, purpose)))

    assert draw(0, "windows") == draw(0, "windows")
    assert len({draw(s, p) for s in range(3) for p in ("windows", "attack")}) == 6
    assert len({seed_of(0, f"{w} {r}", n) for w in range(3) for r in range(3) for n in "ab"}) == 18


# bytes


def test_dense_bf16_of_5376_parameters() -> None:
    made = traffic.exchange(codec_named("bf16"), TOY, torch.ones(5376), senders=4, added=True)
    assert (made.payload, made.ring, made.star_up, made.star_down) == (
        10_752,
        16_128,
        10_752,
        10_752,
    )
    assert (made.values, made.indices) == (10_752, 0)
    assert (round(made.ring / 10), round(made.ring / 50)) == (1_613, 323)


def test_topk_and_demo_of_the_plan() -> None:
    topk = traffic.sparse_payload(5376, kept=1 / 16, value_bytes=2, index_bytes=2)
    assert (topk, topk / (2 * 5376)) == (1_344, 4 / 32)
    demo = traffic.chunked_payload(5376, chunk=64, keep=4, value_bytes=2, index_bytes=1)
    assert demo == 1_008
    assert traffic.all_gather(demo, workers=4) == 3_024
    assert traffic.all_gather(demo, workers=8) == 7 * demo


def test_seven_billion_parameters() -> None:
    """LLaMA 7B: 13.5 GB in bf16, more than a second at 12.5 GB/s."""
    size = 2 * 6_738_415_616
    assert size / 1e9 == pytest.approx(13.5, abs=0.05)
    assert traffic.ring(size, workers=2) / 12.5e9 > 1.0


@pytest.mark.parametrize("name", CODECS)
def test_bytes_are_those_of_the_codec(name: str) -> None:
    codec = codec_named(name)
    made = traffic.exchange(codec, SHAPES, torch.ones(SIZE), senders=5, added=True)
    assert made.payload == sum(codec.size_bytes(shape) for shape in SHAPES.values())
    assert made.payload == made.values + made.indices == made.star_up
    assert made.all_gather == 4 * made.payload
    sparse = name.split("-")[0] in ("topk", "randomk", "dct2")
    assert (made.indices > 0) == (sparse or name == "dither-4")  # keys
    dense = name in ("fp32", "bf16", "fp16")
    assert made.ring == (round(8 / 5 * made.payload) if dense else made.all_gather)
    assert made.star_down == (made.payload if dense else 4 * SIZE)
    # A median is no sum: everybody needs every vector
    apart = traffic.exchange(codec, SHAPES, torch.ones(SIZE), senders=5, added=False)
    assert apart.ring == made.all_gather


@pytest.mark.parametrize("name", ["topk-64-b2", "topk-64-b16", "randomk-64"])
def test_a_star_sends_down_the_union_or_all(name: str) -> None:
    """Values of fp32 and places of 12 bits: the merged vector is what is applied."""
    shape, codec = {"a": (64, 64)}, codec_named(name)
    union = torch.zeros(4096)
    union[:100] = 1.0
    assert traffic.exchange(codec, shape, union, senders=4, added=True).star_down == 550
    every = torch.ones(4096)
    assert traffic.exchange(codec, shape, every, senders=4, added=True).star_down == 4 * 4096


def test_exchanges_add_up() -> None:
    exchange = Exchange(config("codec=topk"), TOY)
    for number in range(3):
        sent = exchange.fed_back(rows(4, 5376), round_=number, who=range(4), names=list(TOY))
        exchange.merged(sent, shares=equal(4), names=list(TOY))
    once = sum(codec_named("topk-64-b2").size_bytes(shape) for shape in TOY.values())
    assert exchange.traffic.payload == 3 * once
    assert exchange.traffic.row()["all_gather"] == 9 * once


def test_bytes_are_the_mean_of_all_workers_and_of_networks_of_those_present() -> None:
    """Who is absent sends nothing, and is no part of the ring."""
    exchange = Exchange(config("codec=fp32", "workers=4"), TOY)
    for who in ((0, 2), (1,), (0, 1, 2, 3)):
        sent = exchange.fed_back(rows(len(who), 5376), round_=0, who=who, names=list(TOY))
        exchange.merged(sent, shares=equal(len(who)), names=list(TOY))
    once = 4 * 5376
    made = exchange.traffic
    assert made.payload == made.star_up == made.star_down == (2 + 1 + 4) * once // 4
    assert made.all_gather == (2 * 1 + 0 + 4 * 3) * once // 4
    assert made.ring == (2 * 1 * once + 0 + 4 * (3 * once // 2)) // 4


# attackers


def attacked(*words: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows before and after."""
    made = config("workers=4", "attack.workers=2", *words)
    before = rows(4, 2000)
    after = before.clone()
    attack_(after, made.attack, generator=torch.Generator().manual_seed(0))
    assert torch.equal(after[:2], before[:2])
    return before, after


def test_independent_sign_flip() -> None:
    before, after = attacked("attack=sign_flip", "attack.scale=3")
    assert torch.equal(after[2:], before[2:] * -3)


def test_coordinated_sign_flip() -> None:
    before, after = attacked("attack=sign_flip", "attack.coordinated=true")
    assert torch.equal(after[2], after[3])
    torch.testing.assert_close(after[2], -before[2:].mean(0))


def test_inner_product() -> None:
    before, after = attacked("attack=inner_product", "attack.scale=0.5")
    torch.testing.assert_close(after[2:], (before[:2].mean(0) * -0.5).expand(2, -1))


@pytest.mark.parametrize("together", ["true", "false"])
def test_noise_is_as_long_as_what_it_replaces(together: str) -> None:
    before, after = attacked("attack=noise", "attack.scale=2", f"attack.coordinated={together}")
    lengths = after[2:].norm(dim=1) / before[2:].norm(dim=1)
    assert lengths.tolist() == pytest.approx([2.0, 2.0], rel=0.15)
    assert torch.equal(after[2], after[3]) == (together == "true")
    cosine = torch.nn.functional.cosine_similarity(after[2], before[2], dim=0)
    assert abs(float(cosine)) < 0.1
