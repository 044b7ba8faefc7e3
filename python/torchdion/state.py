"""The optimizer's state of one parameter: native tensors, complete after one step."""

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from torchdion import _C
from torchdion.mixed_precision import STATE_DTYPES, dtype_of
from torchdion.parameters import algorithm_of, form_of

STATES = {
    "dion": ("momentum", "Q", "step"),
    "lion": ("momentum", "step"),
    "adamw": ("momentum", "variance", "step"),
}
"""The state of each algorithm's parameters, in the order of the engine's lists."""


def create_state(param: Tensor, group: dict[str, Any], index: int) -> dict[str, Tensor]:
    """The state before the first step: zero momentum, Q from a counter-based generator keyed by ``index``."""

    def zeros(key: str) -> Tensor:
        return torch.zeros(param.shape, dtype=dtype_of(key, param, group), device=param.device)

    algorithm = algorithm_of(param, group)
    state = {"step": torch.zeros((), dtype=torch.float32, device="cpu"), "momentum": zeros("momentum")}
    if algorithm == "adamw":
        state["variance"] = zeros("variance")
    if algorithm == "dion":
        state["Q"] = _start_of_Q(param, group, index)
    return state


def _start_of_Q(param: Tensor, group: dict[str, Any], index: int) -> Tensor:
    orientation = _C.Orientation.__members__[group["orientation"]]
    rank = (group["rank_fraction"], group["rank_multiple_of"])
    dtype = dtype_of("Q", param, group)
    return _C.start_of_Q(
        list(param.shape), *form_of(group), orientation, *rank, group["seed"], index, dtype, _C.Layout()
    )


def check_keys(param: Tensor, state: dict[str, Any], keys: tuple[str, ...], name: str = "a parameter") -> None:
    """Raises ValueError where a loaded state is not that of the algorithm that updates the parameter."""
    for key in keys:
        if key not in state:
            raise ValueError(
                f"torchdion.Dion: the state of {name} of shape {tuple(param.shape)} lacks the tensor {key!r}: it has "
                f"{sorted(map(str, state))}; is it the checkpoint of another optimizer or with other options?"
            )
        if not isinstance(state[key], Tensor):
            raise ValueError(
                f"torchdion.Dion: the state {key!r} of {name} of shape {tuple(param.shape)} must be a tensor, got "
                f"{type(state[key]).__name__}"
            )


def restore_states(optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
    """After torch has cast every state to its parameter's dtype: back to the configured ones, from the original.

    A state without a step of its own (the ``dion`` package counts in the group) takes the group's.
    """
    for group, saved_group in zip(optimizer.param_groups, state_dict["param_groups"], strict=True):
        for param, saved in zip(group["params"], saved_group["params"], strict=True):
            original = state_dict["state"].get(saved)
            if not original:
                continue
            state = optimizer.state[param]
            for key in STATE_DTYPES:
                if isinstance(original.get(key), Tensor):
                    dtype = dtype_of(key, param, group)
                    state[key] = original[key].to(param.device, dtype, copy=True).contiguous()
            step = original.get("step", saved_group.get("step", 0))
            state["step"] = torch.as_tensor(step, dtype=torch.float32, device="cpu").detach().clone()
