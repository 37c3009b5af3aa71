"""The finite check looks at every value, in chunks."""

import pytest
import torch

from pww.codec import is_finite, require_finite
from pww.codec.finite import CHUNK
from pww.errors import PayloadError


def test_integers_and_nothing_are_finite():
    assert is_finite(torch.tensor([1, 2]))
    assert is_finite(torch.empty(0))
    assert is_finite(torch.tensor(3.0))


@pytest.mark.parametrize("at", [0, CHUNK - 1, CHUNK, CHUNK + 2])
def test_one_bad_value_is_found_wherever_it_is(at):
    x = torch.zeros(CHUNK + 3)
    x[at] = float("nan")
    assert not is_finite(x)


def test_the_text_counts_bad_values_over_all_chunks():
    x = torch.zeros(CHUNK + 3)
    x[0] = x[-1] = float("inf")
    with pytest.raises(PayloadError, match=f"2 of {CHUNK + 3} values are nan or inf"):
        require_finite(x)
