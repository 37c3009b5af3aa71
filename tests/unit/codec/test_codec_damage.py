"""Parts that no codec writes are refused, each with its own words, and never decoded."""

import math

import pytest
import torch

from pww.codec import codec_named
from pww.errors import NotFiniteError, PayloadError

BLOCKED = ("fp16", "int8", "int4", "int2", "sign", "topk-64-b2", "topk-77-b8", "dct2-64")


def parts_of(name, n, seed=0):
    x = torch.randn(n, generator=torch.Generator().manual_seed(seed))
    return codec_named(name), codec_named(name).encode(x)


def refused(codec, parts, n, words):
    with pytest.raises(PayloadError, match=words) as caught:
        codec.decode(parts, (n,))
    assert not isinstance(caught.value, NotFiniteError), "the bytes are at fault, not the delta"


@pytest.mark.parametrize("name", BLOCKED)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1.0, -0.0, -1e-45])
@pytest.mark.parametrize("row", [0, 1, 2])
def test_a_scale_that_is_none_is_refused(name, bad, row):
    codec, parts = parts_of(name, 2 * 4096 + 100)
    parts["scales"][parts["scales"].numel() // 3 * row] = bad
    refused(codec, parts, 2 * 4096 + 100, r"a scale of .* is damaged: scales are 0 to")


@pytest.mark.parametrize(("name", "most"), [("int8", 127), ("int4", 7), ("topk-4096-b4", 7)])
def test_a_scale_that_would_make_values_infinite_is_refused(name, most):
    codec, parts = parts_of(name, 100)
    largest = torch.finfo(torch.float32).max
    parts["scales"].fill_(largest / most * 1.001)
    refused(codec, parts, 100, r"a scale of .*e\+3\d is damaged: scales are 0 to .*e\+3\d")
    parts["scales"].fill_(largest / most * 0.999)
    assert torch.isfinite(codec.decode(parts, (100,))).all()


@pytest.mark.parametrize("at", [0, 4095, 4096, -1])
def test_an_impossible_code_of_int8_is_refused(at):
    codec, parts = parts_of("int8", 2 * 4096 + 100)
    parts["codes"][at] = -128
    refused(codec, parts, 2 * 4096 + 100, "an int8 code of -128 is damaged: codes are -127 to 127")


@pytest.mark.parametrize("at", [0, 2047, 4096, -2])
@pytest.mark.parametrize("mask", [0x0F, 0xF0])
def test_an_impossible_code_of_int4_is_refused(at, mask):
    codec, parts = parts_of("int4", 2 * 4096 + 101)
    parts["codes"][at] &= mask
    refused(codec, parts, 2 * 4096 + 101, "an int4 code of -8 is damaged: codes are -7 to 7")


@pytest.mark.parametrize(
    ("name", "n"), [("int4", 5), ("int2", 4097), ("int2", 4099), ("sign", 9), ("sign", 4)]
)
def test_bits_behind_the_last_value_are_refused(name, n):
    codec, parts = parts_of(name, n)
    assert int(parts["codes"][-1]) < 0x80
    parts["codes"][-1] |= 0x80
    refused(codec, parts, n, "bits behind the last code are not zero: the part is damaged")


def test_codes_of_fp16_that_are_none_are_refused():
    codec, parts = parts_of("fp16", 100)
    for bad in (math.nan, math.inf, -math.inf, 32800.0, -32800.0):
        broken = {**parts, "codes": parts["codes"].clone()}
        broken["codes"][50] = bad
        refused(codec, broken, 100, r"an fp16 code of .* is damaged: at most 32768")
    parts["scales"].mul_(1.5)
    refused(codec, parts, 100, "a scale of fp16 is damaged: it is no power of two")
    parts["scales"].fill_(2.0**114)
    refused(codec, parts, 100, r"a scale of 2.07692e\+34 is damaged: scales are 0 to 1.03846e\+34")


@pytest.mark.parametrize("name", ["topk-64-b2", "dct2-64"])
def test_places_that_do_not_ascend_are_refused(name):
    codec, parts = parts_of(name, 4096)
    for broken in (parts["places"].flip(0), torch.zeros_like(parts["places"])):
        refused(codec, {**parts, "places": broken}, 4096, "places do not ascend: the part is dam")


def test_places_outside_of_the_row_are_refused():
    codec, parts = parts_of("topk-64-b2", 128)  # two places: 24 bits
    parts["places"].copy_(torch.tensor([0, 0, 8]))  # 0 and 128
    refused(codec, parts, 128, "a place is outside of a row of 128 values: the part is damaged")
    parts["places"].copy_(torch.tensor([0, 0xF0, 7]))  # 0 and 127
    assert codec.decode(parts, (128,)).nonzero().view(-1).tolist() == [0, 127]


def test_bits_behind_the_last_place_are_refused():
    codec, parts = parts_of("topk-41-b4", 4096)
    parts["places"][41] |= 0x10  # the high half of the middle plane's last byte
    refused(codec, parts, 4096, "bits behind the last place are not zero: the part is damaged")


def test_drawn_values_that_are_or_become_infinite_are_refused():
    codec, parts = parts_of("randomk-64", 4096)
    for bad in (math.nan, math.inf, 1e37):
        parts["values"][3] = bad
        refused(codec, parts, 4096, "a value is nan or inf, or too large: the part is damaged")
    raw = codec_named("randomk-64-raw")
    assert float(raw.decode(parts, (4096,)).max()) == pytest.approx(1e37)


def test_coefficients_that_are_too_large_are_refused():
    codec, parts = parts_of("dct2-64", 4096)
    parts["scales"].fill_(2.0**113)
    parts["codes"].fill_(32768.0)
    refused(codec, parts, 4096, "coefficients are too large for fp32: the part is damaged")
