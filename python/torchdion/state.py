"""The optimizer's state of one parameter: native tensors, complete after one step."""

from typing import Any

from torch import Tensor

from torchdion.dtensor import check_lies_as, is_dtensor, local_part, placements_of
from torchdion.parameters import form_of
from torchdion.table import STATE_DTYPES, State, algorithm_of, options_of
from torchdion.words import front

States = dict[Tensor, dict[str, Tensor]]
"""The tensors of each parameter's state that are ours."""

_DIMS: dict[tuple[Any, ...], dict[int, int | None]] = {}
"""By what it depends on: the dimension of a state that is cut where one of its parameter is. Asked for at each step."""


def placements_of_state(state: State, sizes: Any, param: Tensor, group: dict[str, Any]) -> Any:
    """Where the pieces of a whole state of these sizes lie; empty for a plain tensor."""
    if not is_dtensor(param) or state.shape == "like_parameter":
        return getattr(param, "placements", ())
    algorithm = algorithm_of(param, group).name
    key = (algorithm, state, tuple(sizes), param.shape, form_of(group), group.get("orientation"))
    if key not in _DIMS:
        _DIMS[key] = options_of(group).dims_of_state(list(param.shape), state.name, list(sizes))
    return placements_of(param, _DIMS[key])


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


def state_bytes(states: dict[Any, dict[str, Any]]) -> int:
    """Of all states on this rank."""
    kept = (state for param, state in states.items() if isinstance(param, Tensor))
    tensors = (local_part(value) for state in kept for value in state.values() if isinstance(value, Tensor))
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
