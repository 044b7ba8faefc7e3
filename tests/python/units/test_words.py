"""A sentence shows any value, on one line and not all of a long one."""

import pytest
import torch
from exotic import Unprintable, freed, nested

from torchdion.words import LONGEST, shown


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: "right", "'right'"),
        (lambda: 0.5, "0.5"),
        (lambda: 10**5000, "a value of type int"),
        (Unprintable, "a value of type Unprintable"),
        (lambda: nested(5000), "a value of type list"),
        (lambda: torch.ones(2, 2), "tensor([[1., 1.], [1., 1.]])"),
        (lambda: torch.ones(2, device="meta"), "a Tensor without memory"),
        (lambda: freed(torch.ones(2)), "a Tensor without memory"),
        (lambda: "a" * 500, "'" + "a" * (LONGEST - 1) + "…"),
    ],
)
def test_a_value_is_shown_on_one_line(make, words):
    assert shown(make()) == words
