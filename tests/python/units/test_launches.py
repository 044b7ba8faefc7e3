"""`_C.launches_of()`: what a step launches and allocates; on the CPU, torch's operators alone."""

import pytest
import torch
from torch import nn

import torchdion
from torchdion import _C


def test_a_steps_operators_and_allocations_are_listed_and_it_is_taken() -> None:
    weight = nn.Parameter(torch.randn(40, 30))
    optimizer = torchdion.Dion([weight], lr=0.1, rank_fraction=0.5)
    weight.grad = torch.randn(40, 30)
    optimizer.step()
    before = weight.detach().clone()
    *launches, allocation = _C.launches_of(optimizer.step, "cpu")
    assert not torch.equal(weight.detach(), before)
    assert {row["name"] for row in launches} >= {"aten::item", "aten::zeros"}  # the count of steps lies on the CPU
    assert allocation["name"] == "allocation"
    assert allocation["bytes"] >= allocation["peak_bytes"] >= 4 * (40 + 30) * 15  # P and R


def test_a_call_is_listed_within_another_and_both_see_it() -> None:
    inner: list[dict[str, object]] = []

    def outside() -> None:
        torch.zeros(3)
        inner.extend(_C.launches_of(lambda: torch.ones(5), "cpu"))

    rows = _C.launches_of(outside, "cpu")
    assert [row["name"] for row in inner] == ["aten::ones", "allocation"]
    assert [(row["name"], row.get("bytes")) for row in rows] == [
        ("aten::zeros", 12),
        ("aten::ones", 20),
        ("allocation", 32),
    ]


def test_a_call_that_fails_leaves_nothing_recording() -> None:
    with pytest.raises(ZeroDivisionError):
        _C.launches_of(lambda: 1 // 0, "cpu")
    torch.ones(5)
    assert [row["name"] for row in _C.launches_of(lambda: None, "cpu")] == ["allocation"]


def test_what_torchs_profiler_records_is_not_listed_at_the_same_time() -> None:
    with torch.profiler.profile(), pytest.raises(ValueError, match="while torch's profiler is on"):
        _C.launches_of(lambda: None, "cpu")
