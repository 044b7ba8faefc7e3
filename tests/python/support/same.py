"""States and checkpoints that are equal."""

from typing import Any

import torch
from torch import Tensor


def assert_same(one: Any, other: Any) -> None:
    """Equal in every bit, type by type."""
    if isinstance(one, Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for mine, its in zip(one, other, strict=True):
            assert_same(mine, its)
    else:
        assert (type(one), one) == (type(other), other)
