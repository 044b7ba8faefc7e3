"""A matrix and a bias fitted to nothing: the problem of the drop-in tests, with every way to set up the optimizer."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

import torchdion

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "lr": {"lr": 0.03},
    "tensor lr": {"lr": torch.tensor(0.02)},
    "weight decay": {"weight_decay": 0.1},
    "maximize": {"maximize": True, "weight_decay": 0.1},
    "low rank": {"rank_fraction": 0.4, "orientation": "left"},
    "rcqr": {"orthonormalize": "rcqr"},
    "adamw": {"scalar_algorithm": "adamw", "betas": (0.8, 0.9)},
    "dtypes": {"mixed_precision_config": torchdion.DionMixedPrecisionConfig(torch.bfloat16, torch.float64)},
    "residual": {"residual": "sign", "nesterov": True, "right_factor": "orthonormal", "rank_fraction": 0.4},
    "zero": {"nonfinite": "zero", "mu": 0.5},
}


def options(name: str) -> dict[str, Any]:
    """A configuration of its own: a scheduler writes into a tensor lr."""
    return {key: value.clone() if isinstance(value, Tensor) else value for key, value in CONFIGURATIONS[name].items()}


def parameters(contiguous: bool = True) -> list[Parameter]:
    """A 10×5 weight and a bias, the same ones at each call."""
    generator = torch.Generator().manual_seed(0)
    wide = [torch.randn(*shape, 2, generator=generator) for shape in ((10, 5), (10,))]
    return [Parameter(tensor[..., 0].contiguous() if contiguous else tensor[..., 0]) for tensor in wide]


def closure(optimizer: torch.optim.Optimizer, params: list[Parameter]) -> Callable[[], Tensor]:
    """Recomputes ‖W x + b‖² and its gradients."""
    weight, bias = params

    def evaluate() -> Tensor:
        optimizer.zero_grad()
        loss = (weight.mv(torch.linspace(-1, 1, 5).to(weight.dtype)) + bias).square().sum()
        loss.backward()
        return loss

    return evaluate


def trained(
    steps: int, params: list[Parameter] | None = None, named: bool = False, **kwargs: Any
) -> tuple[list[Parameter], torchdion.Dion]:
    params = parameters() if params is None else params
    optimizer = torchdion.Dion(zip(("weight", "bias"), params, strict=True) if named else params, **kwargs)
    for _ in range(steps):
        optimizer.step(closure(optimizer, params))
    return params, optimizer


def assert_same_state_dict(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    """Equal in every key, number and bit."""
    assert actual["param_groups"] == expected["param_groups"]
    assert list(actual["state"]) == list(expected["state"])
    for index, state in expected["state"].items():
        assert list(actual["state"][index]) == list(state)
        for key, value in state.items():
            assert actual["state"][index][key].dtype == value.dtype
            assert torch.equal(actual["state"][index][key], value), (index, key)
