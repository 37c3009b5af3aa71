"""The names of cells: one for each cell, read back as that cell, fit for a folder."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pww.errors import LabError
from pww.lab.cells import MAX_LENGTH, cell_id, common, full_name, reference, text_of

KEYS = st.sampled_from(
    ["codec", "codec.keep", "diloco.inner_steps", "merge", "workers", "task.text", "H2.x", "lab.a"]
)
VALUES = st.one_of(
    st.integers(-5, 5000),
    st.booleans(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text("ab=,.~_ é/", max_size=6),
    st.lists(st.integers(0, 3), max_size=3),
)
CELLS = st.dictionaries(KEYS, VALUES, max_size=5)


@pytest.mark.parametrize(
    ("cell", "name"),
    [
        ({}, "base"),
        ({"diloco.inner_steps": 16, "codec": "topk"}, "codec=topk,H=16"),
        ({"codec": "topk", "diloco.inner_steps": "16"}, "codec=topk,H=16"),
        ({"codec.feedback": True, "diloco.outer.lr": "7e-1"}, "feedback=true,outer_lr=0.7"),
        ({"codec.feedback": "true", "diloco.outer.lr": 0.70}, "feedback=true,outer_lr=0.7"),
        ({"diloco.outer.momentum": 0.0}, "momentum=0"),
        ({"workers": 8, "task.size": "413k"}, "size=413k,workers=8"),
    ],
)
def test_names_are_short_and_do_not_depend_on_order_or_spelling(cell: dict, name: str) -> None:
    assert cell_id(cell) == name
    assert reference(name).name == name
    assert reference(name).means(cell, {})


def same(one: dict, other: dict) -> bool:
    return {k: text_of(v) for k, v in one.items()} == {k: text_of(v) for k, v in other.items()}


@given(CELLS, CELLS)
@settings(deadline=None)
def test_two_cells_have_two_names_and_every_name_is_a_folders(one: dict, other: dict) -> None:
    assert (cell_id(one) == cell_id(other)) == same(one, other)
    assert re.fullmatch(r"[\w.=,+~-]+", cell_id(one), re.ASCII)
    assert len(cell_id(one)) <= MAX_LENGTH + 9


def test_a_value_that_reads_like_more_of_a_name_is_told_apart() -> None:
    cells = ({"codec": "topk,merge=mean"}, {"codec": "topk", "merge": "mean"})
    assert cell_id(cells[0]) != cell_id(cells[1]) == "codec=topk,merge=mean"
    assert cell_id({"H": 4}) != cell_id({"diloco.inner_steps": 4}) == "H=4"
    assert cell_id({"codec": ""}) != cell_id({})


def test_a_list_has_a_name_too_and_long_ones_are_cut() -> None:
    assert cell_id({"method.worker_steps": [4, 8]}).startswith("method.worker_steps=_4,8_~")
    long = {f"lab.key{i}": "x" * 20 for i in range(9)}
    assert len(cell_id(long)) == MAX_LENGTH + 9
    assert reference(cell_id(long)).means(long, {})
    assert not reference(cell_id(long)).means({**long, "lab.key0": "y"}, {})


def test_a_reference_may_leave_out_what_all_cells_have_and_nothing_else() -> None:
    topk = {"codec": "topk", "diloco.inner_steps": 16, "lab.steps": 500}
    dense = {"codec": "fp32", "diloco.inner_steps": 16, "lab.steps": 500}
    shared = common([topk, dense])
    assert shared == {"diloco.inner_steps": 16, "lab.steps": 500}
    assert reference("codec=topk").means(topk, shared)
    assert reference("H=16 codec=topk").means(topk, shared)
    assert not reference("codec=topk").means(dense, shared)
    assert not reference("H=16").means(topk, shared)  # which codec?
    assert not reference("codec=topk,merge=median").means(topk, shared)
    assert not reference("base").means(topk, shared)
    assert reference("base").means({"lab.steps": 500}, {"lab.steps": "500"})
    assert common([]) == {}


def test_a_list_is_one_value_of_a_reference() -> None:
    assert reference("task.curvature=[1.0,0.3],H=5").texts == {
        "task.curvature": "[1.0,0.3]", "diloco.inner_steps": "5"
    }  # fmt: skip


@pytest.mark.parametrize("text", ["", "topk", "codec=", "=topk", "codec=topk,,"])
def test_what_is_no_cell_is_refused(text: str) -> None:
    with pytest.raises(LabError, match="a cell is its overrides, such as codec=topk,H=16, or base"):
        reference(text)


def test_a_rate_is_beside_the_cell() -> None:
    assert reference("H=16@0.003") == reference("H=16")
    assert full_name("H=16,codec=topk@3e-3") == "codec=topk,H=16@0.003"
    assert full_name("H=16,codec=topk") == "codec=topk,H=16"
    for text, said in (("H=16@fast", "fast"), ("H=16@", "nothing")):
        with pytest.raises(LabError, match=f"{text}: {said} is no learning rate"):
            full_name(text)
