"""orientation="short": of both orientations the one whose P has min(m, n) rows, kept by checkpoints."""

import copy

import pytest
import torch
from runs import normals
from torch import Tensor
from torch.nn import Parameter

import torchdion

SHAPES = [((20, 48), "left"), ((48, 20), "right"), ((24, 24), "right"), ((3, 5, 40), "left"), ((3, 40, 5), "right")]
"""Of parameters, and which orientation is the short one."""


def drawn(count: int, shape: tuple[int, ...], seed: int) -> list[Tensor]:
    return [tensor for [tensor] in normals(count, shape, seed=seed)]


def optimizer_of(start: Tensor, **options) -> torchdion.Dion:  # type: ignore[no-untyped-def]
    batch_dims = {"batch_dims": 1} if start.dim() == 3 else {}
    return torchdion.Dion([{"params": [Parameter(start.clone())], **batch_dims}], lr=0.1, rank_fraction=0.5, **options)


def steps(optimizer: torchdion.Dion, gradients: list[Tensor]) -> Tensor:
    [param] = optimizer.param_groups[0]["params"]
    for gradient in gradients:
        param.grad = gradient.clone()
        optimizer.step()
    return param.detach()


@pytest.mark.parametrize(("shape", "same_as"), SHAPES)
def test_short_steps_are_those_of_the_orientation_whose_P_is_shorter(shape: tuple[int, ...], same_as: str) -> None:
    start, *gradients = drawn(4, shape, seed=1)
    short = optimizer_of(start, orientation="short")
    assert torch.equal(steps(short, gradients), steps(optimizer_of(start, orientation=same_as), gradients))
    [param] = short.param_groups[0]["params"]
    m, n = shape[-2:]
    assert short.state[param]["Q"].shape[-2:] == (max(m, n), (min(m, n) + 1) // 2)


def test_fan_in_first_counts_before_the_sides_are_compared() -> None:
    start, gradient = drawn(2, (40, 6), seed=2)
    param = Parameter(start)
    optimizer = torchdion.Dion([{"params": [param], "fan_in_first": True}], rank_fraction=0.5, orientation="short")
    steps(optimizer, [gradient])
    assert optimizer.state[param]["Q"].shape == (40, 3)


@pytest.mark.parametrize("saved", ["short", "right", "left"])
@pytest.mark.parametrize("loads", ["short", "right", "left"])
@pytest.mark.parametrize("shape", [(20, 48), (48, 20)])
def test_a_loaded_Q_keeps_the_side_that_it_was_made_for(saved: str, loads: str, shape: tuple[int, int]) -> None:
    start, *gradients = drawn(5, shape, seed=3)
    first = optimizer_of(start, orientation=saved)
    steps(first, gradients[:2])
    [param] = first.param_groups[0]["params"]
    second = optimizer_of(param.detach(), orientation=loads)
    state_dict = copy.deepcopy(first.state_dict())
    state_dict["param_groups"][0]["orientation"] = loads
    second.load_state_dict(state_dict)
    assert torch.equal(steps(first, gradients[2:]), steps(second, gradients[2:]))


def test_an_unknown_orientation_is_refused_with_all_that_are_allowed() -> None:
    with pytest.raises(ValueError, match="orientation must be one of 'right', 'left', 'short', got 'wide'"):
        torchdion.Dion([Parameter(torch.zeros(3, 4))], orientation="wide")  # type: ignore[arg-type]
