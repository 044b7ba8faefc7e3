"""The optimizer's state of one parameter: native tensors, complete after one step."""

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from torchdion import _C
from torchdion.dtensor import check_lies_as, is_dtensor, is_plain, local_part, placements_of, state_like
from torchdion.layout import Piece
from torchdion.mixed_precision import dtype_of
from torchdion.owners import Part
from torchdion.parameters import form_of
from torchdion.table import STATE_DTYPES, Algorithm, State, algorithm_of, options_of
from torchdion.words import front


def create_state(
    param: Tensor, group: dict[str, Any], index: int, piece: Piece, part: Part | None = None
) -> dict[str, Tensor]:
    """The state before the first step; what starts normal is drawn from a counter-based generator keyed by ``index``.

    Raises:
        RuntimeError: a CUDA graph is being captured; it would make the state anew at every replay.
    """
    if is_capturing(param):
        raise RuntimeError(f"{front()}: a CUDA graph cannot capture a parameter's first step: take one before")
    algorithm, options, device = algorithm_of(param, group), options_of(group), local_part(param).device
    made = {"step": torch.zeros((), dtype=torch.float32, device=device_of_step(param, group))}
    for state in algorithm.states:
        sizes, dtype = list(param.shape), dtype_of(state.name, param, group)
        whole = _C.whole_state_sizes(algorithm.name, state.name, sizes, options)
        if part is not None:  # no state of those that have owners starts otherwise
            made[state.name] = torch.zeros(part.sizes(whole, param), dtype=dtype, device=device)
            continue
        start = (list(piece.shape), options, index, dtype, device, piece.layout)
        local = _C.start_of(algorithm.name, state.name, sizes, *start)
        made[state.name] = state_like(local, param, whole, placements_of_state(state, whole, param, group))
    return made


_DIMS: dict[tuple[Any, ...], dict[int, int | None]] = {}
"""By what it depends on: the dimension of a state that is cut where one of its parameter is. Asked for at each step."""


def placements_of_state(state: State, sizes: Any, param: Tensor, group: dict[str, Any]) -> Any:
    """Where the pieces of a whole state of these sizes lie; empty for a plain tensor."""
    if not is_dtensor(param) or state.shape == "like_parameter":
        return getattr(param, "placements", ())
    algorithm = algorithm_of(param, group).name
    key = (algorithm, state, tuple(sizes), param.shape, form_of(group), group["orientation"])
    if key not in _DIMS:
        options = options_of(group)
        of_param = _C.cuts_of_parameter(param.dim(), options)
        of_state = _C.cuts_of_state(algorithm, state.name, list(sizes), list(param.shape), options)
        _DIMS[key] = {dim: of_state.get(side) for side, dim in of_param.items()}
    return placements_of(param, _DIMS[key])


def device_of_step(param: Tensor, group: dict[str, Any]) -> torch.device:
    return local_part(param).device if group["capturable"] else torch.device("cpu")


def counter_of(param: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
    """This parameter's count of steps, which goes back to where steps count it if others have moved it.

    Loaders and offloading move whole states to a GPU, counters among them, or away from it.
    """
    step = local_part(state["step"])
    if not group["capturable"]:
        if not step.is_cpu and _is_counter(step):
            state["step"] = step = step.cpu()
        return step
    device, dtype = param.device, torch.float32
    if (step.device != device or step.dtype != dtype) and _is_counter(step) and not is_capturing(param):
        state["step"] = step = step.to(device, dtype)
    return step


def _is_counter(step: Tensor) -> bool:
    return is_plain(step) and step.dtype in _COUNTERS and step.numel() == 1 and _C.has_memory(step)


_COUNTERS = (torch.float32, torch.float64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def is_capturing(param: Tensor) -> bool:
    """Whether a CUDA graph records what is done to the parameter."""
    return param.is_cuda and torch.cuda.is_current_stream_capturing()


def is_recorded(optimizer: Optimizer) -> bool:
    """Whether a CUDA graph records the optimizer's step, which then writes nothing before it is replayed."""
    groups = (group["params"] for group in optimizer.param_groups if optimizer.defaults["capturable"])
    return any(is_capturing(params[0]) for params in groups if params)


def check_placements(state: dict[str, Any], param: Tensor, group: dict[str, Any], name: str) -> None:
    """Raises ValueError for a state that does not lie as its parameter does."""
    if not is_dtensor(param) and not any(map(is_dtensor, state.values())):
        return
    for declared in algorithm_of(param, group).states:
        value = state.get(declared.name)
        if value is not None and (is_dtensor(param) or is_dtensor(value)):
            placements = placements_of_state(declared, value.shape, param, group)
            check_lies_as(value, param, placements, f"the state {declared.name} of {name}")


def check_is_state(state: Any, name: str) -> None:
    """Raises ValueError for what is no dictionary."""
    if not isinstance(state, dict):
        raise ValueError(f"{front()}: the state of {name} must be a dict, got {type(state).__name__}")


def is_begun(state: dict[str, Any] | None) -> bool:
    """True if there are entries of ours: before the first step others may keep theirs there, and ours lie beside."""
    return state is not None and ("step" in state or any(key in state for key in STATE_DTYPES))


def forget(states: dict[Any, dict[str, Any]], param: Tensor) -> None:
    """Takes away what is ours of a parameter's state."""
    kept = without_own(states[param])
    states[param].clear()
    states[param].update(kept)
    if not kept:
        del states[param]


def without_own(state: dict[str, Any]) -> dict[str, Any]:
    """The entries that others keep there."""
    return {key: value for key, value in state.items() if key != "step" and key not in STATE_DTYPES}


def check_keys(param: Tensor, state: dict[str, Any], algorithm: Algorithm, name: str, is_counted: bool = True) -> None:
    """Raises ValueError where a state is not that of the algorithm that updates the parameter, or more than that.

    Args:
        is_counted: it must have its count of steps; that of the dion package's checkpoints is in the group.
    """
    own = [declared.name for declared in algorithm.states]
    tensors = [key for key in STATE_DTYPES if key in state]
    if tensors != own:  # what is no tensor is no state of another algorithm: a program may keep it under any name
        tensors = [key for key in tensors if key in own or isinstance(state[key], Tensor)]
    if tensors != own:
        _C.check_state_names(algorithm.name, tensors, list(param.shape), name)
    for key in (*tensors, "step") if is_counted else tensors:
        if not isinstance(state.get(key), Tensor):
            raise ValueError(
                f"{front()}: the state {key} of {name} must be a tensor, got {type(state.get(key)).__name__}"
            )


def state_bytes(states: dict[Any, dict[str, Any]]) -> int:
    """Of all states on this rank."""
    kept = (state for param, state in states.items() if isinstance(param, Tensor))
    tensors = (local_part(value) for state in kept for value in state.values() if isinstance(value, Tensor))
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
