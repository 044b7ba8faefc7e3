"""The optimizer's state of one parameter: native tensors, complete after one step."""

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from torchdion import _C
from torchdion.dtensor import check_lies_as, is_dtensor, local_part, placements_of_Q, state_like
from torchdion.layout import Place
from torchdion.mixed_precision import STATE_DTYPES, dtype_of
from torchdion.parameters import algorithm_of, form_of
from torchdion.words import shown

STATES = {
    "dion": ("momentum", "Q", "step"),
    "lion": ("momentum", "step"),
    "adamw": ("momentum", "variance", "step"),
}
"""The state of each algorithm's parameters, in the order of the engine's lists."""


def create_state(param: Tensor, group: dict[str, Any], index: int, place: Place) -> dict[str, Tensor]:
    """The state before the first step: zero momentum, Q from a counter-based generator keyed by ``index``.

    Raises:
        RuntimeError: a CUDA graph is being captured; it would make the state anew at every replay.
    """
    if is_capturing(param):
        raise RuntimeError("torchdion.Dion: a CUDA graph cannot capture a parameter's first step: take one before")

    def zeros(key: str) -> Tensor:
        local = torch.zeros(place.shape, dtype=dtype_of(key, param, group), device=local_part(param).device)
        return state_like(local, param, param.shape)

    algorithm = algorithm_of(param, group)
    step = torch.zeros((), dtype=torch.float32, device=device_of_step(param, group))
    state = {"step": step, "momentum": zeros("momentum")}
    if algorithm == "adamw":
        state["variance"] = zeros("variance")
    if algorithm == "dion":
        state["Q"] = _start_of_Q(param, group, index, place.layout)
    return state


def device_of_step(param: Tensor, group: dict[str, Any]) -> torch.device:
    return local_part(param).device if group["capturable"] else torch.device("cpu")


def is_capturing(param: Tensor) -> bool:
    """Whether a CUDA graph records what is done to the parameter."""
    return param.is_cuda and torch.cuda.is_current_stream_capturing()


def is_recorded(optimizer: Optimizer) -> bool:
    """Whether a CUDA graph records the optimizer's step, which then writes nothing before it is replayed."""
    groups = (group["params"] for group in optimizer.param_groups if optimizer.defaults["capturable"])
    return any(is_capturing(params[0]) for params in groups if params)


def _start_of_Q(param: Tensor, group: dict[str, Any], index: int, layout: _C.Layout) -> Tensor:
    orientation = _C.Orientation.__members__[group["orientation"]]
    rank = (group["rank_fraction"], group["rank_multiple_of"])
    shape, seed = list(param.shape), group["seed"]
    dtype, device = dtype_of("Q", param, group), local_part(param).device
    local = _C.start_of_Q(shape, *form_of(group), orientation, *rank, seed, index, dtype, device, layout)
    return state_like(local, param, shape_of_Q(param, group), placements_of_Q(param, group, orientation.name))


def shape_of_Q(param: Tensor, group: dict[str, Any]) -> tuple[int, ...]:
    """[stack..., m or n, r] of the whole Q that a parameter begins with."""
    *stack, m, n = _C.matrix_sizes(list(param.shape), *form_of(group))
    r = _C.rank_of(m, n, group["rank_fraction"], group["rank_multiple_of"]) if param.numel() else 0
    return (*stack, m if group["orientation"] == "right" else n, r)


def orientation_of(Q: Tensor, param: Tensor, group: dict[str, Any]) -> str:
    """A Q keeps the orientation that it was made with, which its rows tell; those of a square matrix do not."""
    *_, m, n = _C.matrix_sizes(list(param.shape), *form_of(group))
    orientation: str = group["orientation"]
    if m != n and Q.dim() >= 2:
        return "right" if Q.shape[-2] == m else "left"
    return orientation


def check_placements(state: dict[str, Any], param: Tensor, group: dict[str, Any], name: str) -> None:
    """Raises ValueError for a state that does not lie as its parameter does."""
    for key in STATE_DTYPES:
        if key in state and (is_dtensor(param) or is_dtensor(state[key])):
            placements = (
                placements_of_Q(param, group, orientation_of(state[key], param, group))
                if key == "Q"
                else getattr(param, "placements", ())
            )
            check_lies_as(state[key], param, placements, f"the state {key!r} of {name}")


def check_is_state(state: Any, name: str) -> None:
    """Raises ValueError for what is no dictionary."""
    if not isinstance(state, dict):
        raise ValueError(f"torchdion.Dion: the state of {name} must be a dict, got {type(state).__name__}")


def check_keys(param: Tensor, state: dict[str, Any], keys: tuple[str, ...], name: str = "a parameter") -> None:
    """Raises ValueError where a state is not that of the algorithm that updates the parameter."""
    for key in keys:
        if key not in state:
            raise ValueError(
                f"torchdion.Dion: the state of {name} of shape {tuple(param.shape)} lacks the tensor {key!r}: it has "
                f"{shown(list(state))}; is it the checkpoint of another optimizer or with other options?"
            )
        if not isinstance(state[key], Tensor):
            raise ValueError(
                f"torchdion.Dion: the state {key!r} of {name} of shape {tuple(param.shape)} must be a tensor, got "
                f"{type(state[key]).__name__}"
            )
    if "Q" not in keys and isinstance(state.get("Q"), Tensor):
        raise ValueError(
            f"torchdion.Dion: the algorithm of {name} of shape {tuple(param.shape)} must stay 'dion', whose state Q it "
            "has, got another algorithm or batch_dims in its group, or another shape"
        )


def state_bytes(states: dict[Any, dict[str, Any]]) -> int:
    """Of all states on this rank."""
    kept = (state for param, state in states.items() if isinstance(param, Tensor))
    tensors = (local_part(value) for state in kept for value in state.values() if isinstance(value, Tensor))
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
