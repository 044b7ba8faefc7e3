"""Every algorithm of the table against its oracle: one that has none fails here."""

from typing import Any

import pytest
import torch
from differential import BOUND, excess
from oracle import TRIED_WITH
from runs import follow, normals, start
from torch.nn import Parameter
from trajectory import drawn_factors, error_of_state, expected_of

import torchdion
from torchdion.table import ALGORITHMS

STEPS = 5
CASES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "tall": ((14, 6), {}),
    "wide": ((6, 14), {"maximize": True}),
    "stack": ((3, 9, 5), {"batch_dims": 1, "lr_multiplier": 0.3}),
    "fused": ((12, 7), {"blocks": 3, "weight_decay": 0.0}),
    "fan-in first": ((7, 12), {"fan_in_first": True}),
    "convolution": ((8, 3, 2, 2), {"weight_decay": 0.3}),
    "cautious": ((9, 12), {"cautious_wd": True, "weight_decay": 0.9}),
    "vector": ((11,), {"maximize": True}),
    "cautious vector": ((11,), {"cautious_wd": True, "weight_decay": 0.9}),
    "number": ((), {}),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["fp64", "fp32"])
@pytest.mark.parametrize(("shape", "options"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_steps_equal_the_oracle(
    algorithm: str, shape: tuple[int, ...], options: dict[str, Any], dtype: torch.dtype
) -> None:
    [begin], *gradients = normals(STEPS + 1, shape, dtype=dtype)
    X = Parameter(begin.clone())
    group = {"params": [X], "algorithm": algorithm, **TRIED_WITH.get(algorithm, {}), **options}
    given = {"lr": 0.02, "rank_fraction": 0.5, "weight_decay": group.pop("weight_decay", 0.1), "precision": "highest"}
    optimizer = torchdion.Dion([group], **given)
    start(optimizer)
    states = optimizer.state[X]
    states["step"].zero_()  # the zero gradients of start() were a step
    expected = expected_of(begin, drawn_factors(states), [G for [G] in gradients], optimizer.param_groups[0])
    follow(optimizer, [X], gradients)
    assert excess(X.detach(), expected.X, begin, sum(expected.paths), STEPS) <= 1
    shapes = {state.name: state.shape for each in ALGORITHMS.values() for state in each.states}
    assert states.keys() == {"step", *expected.states}
    for name, state in expected.states.items():
        assert error_of_state(shapes[name], states[name], state) <= 10 * BOUND[dtype], name
