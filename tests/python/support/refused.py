"""An optimizer with every algorithm, and the claim that a refusal leaves all of it as it was."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from broken import why_broken
from runs import follow, normals
from torch import Tensor
from torch.nn import Parameter

import torchdion

SHAPES = [(6, 4), (3, 5, 4), (7,), (8,), (5, 4)]


def matrix() -> Parameter:
    return Parameter(torch.zeros(6, 4))


def untrained(last: str = "dion", **options: Any) -> tuple[list[Parameter], torchdion.Dion]:
    """A matrix, a stack, a Lion and an AdamW vector, and a matrix under the algorithm `last`; all with gradients."""
    params, gradients = normals(2, *SHAPES, dtype=torch.float32)
    params = [Parameter(X) for X in params]
    for param, gradient in zip(params, gradients, strict=True):
        param.grad = gradient
    groups = [
        {"params": params[:1]},
        {"params": params[1:2], "batch_dims": 1},
        {"params": params[2:3], "algorithm": "lion"},
        {"params": params[3:4], "algorithm": "adamw"},
        {"params": params[4:], "algorithm": last},
    ]
    return params, torchdion.Dion(groups, **{"rank_fraction": 0.5, **options})


def trained(last: str = "dion", **options: Any) -> tuple[list[Parameter], torchdion.Dion]:
    """The same after two steps, with gradients for a third."""
    params, optimizer = untrained(last, **options)
    follow(optimizer, params, normals(2, *SHAPES, dtype=torch.float32))
    return params, optimizer


def assert_refused_before_any_write(
    params: list[Parameter],
    optimizer: torchdion.Dion,
    error: type[Exception],
    sentence: str,
    act: Callable[[], object] | None = None,
) -> None:
    """`act`, a step unless given, raises one sentence and leaves parameters, options and state bit for bit."""
    weights = [param.detach().clone() for param in params]
    states = copy.deepcopy([dict(optimizer.state[p]) if p in optimizer.state else None for p in params])
    options = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    with pytest.raises(error, match=sentence) as refusal:
        (act or optimizer.step)()
    assert "\n" not in str(refusal.value).split("Exception raised from")[0].strip()
    for param, weight, state in zip(params, weights, states, strict=True):
        assert torch.equal(param, weight)
        assert (param in optimizer.state) == (state is not None)
        for key, value in (state or {}).items():
            assert_same(optimizer.state[param][key], value)
    for group, before in zip(optimizer.param_groups, options, strict=True):
        assert all(group[key] is value for key, value in before.items())
    assert not why_broken(optimizer)


def assert_same(value: object, before: object) -> None:
    if not isinstance(value, Tensor):
        assert value == before
        return
    assert isinstance(before, Tensor)
    assert value.dtype == before.dtype
    assert torch.equal(value.nan_to_num(-7.5), before.nan_to_num(-7.5))
