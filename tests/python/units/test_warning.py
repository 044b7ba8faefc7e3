"""Warnings point at the line of the user's code, however deep in torch and torchdion they arise."""

import inspect
import warnings

import pytest
import torch
from torch.nn import Parameter

import torchdion


def here() -> int:
    """The line that calls this."""
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back.f_lineno


def construct(group: dict) -> int:
    torchdion.Dion([group]); return here()  # fmt: skip  # noqa: E702


def add(group: dict) -> int:
    optimizer = torchdion.Dion([Parameter(torch.zeros(2, 2))])
    optimizer.add_param_group(group); return here()  # fmt: skip  # noqa: E702


def construct_subclass(group: dict) -> int:
    class Mine(torchdion.Dion):
        pass

    Mine([group]); return here()  # fmt: skip  # noqa: E702


def construct_without_gradients(group: dict) -> int:
    with torch.no_grad():
        torchdion.Dion([group]); return here()  # fmt: skip  # noqa: E702


@pytest.mark.parametrize("misspelt", [True, False])
@pytest.mark.parametrize("call", [construct, add, construct_subclass, construct_without_gradients])
def test_a_warning_points_at_the_line_that_made_the_optimizer_or_added_the_group(call, misspelt):
    group = {"params": Parameter(torch.zeros(2, 2) if misspelt else torch.zeros(2, 3, 4))}
    if misspelt:
        group["weight_decya"] = 0.1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        line = call(group)
    [warning] = caught
    assert (warning.filename, warning.lineno) == (__file__, line)
    assert warning.category is UserWarning
