"""What a state dict must be: all of it is checked before any of it is loaded."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import Optimizer

from torchdion import _C
from torchdion.dtensor import is_dtensor, local_part, state_like
from torchdion.layout import Layouts
from torchdion.mixed_precision import STATE_DTYPES, dtype_of
from torchdion.options import check_options, rename_saved_options
from torchdion.parameters import algorithm_of, form_of, name_of
from torchdion.pieces import piece_of_state
from torchdion.state import STATES, check_keys, check_placements, device_of_step

if TYPE_CHECKING:
    from torchdion.checkpoints import CheckpointedOptimizer


def load_checked(
    optimizer: "CheckpointedOptimizer", load_state_dict: Callable[[dict[str, Any]], None], state_dict: dict[str, Any]
) -> None:
    """Loads by torch's own method, checks before it writes and gives states their configured dtypes after."""
    originals: list[dict[str, Any]] = []
    check_is_state_dict(state_dict)

    def check(_: Optimizer, loaded: dict[str, Any]) -> None:
        check_state_dict(optimizer, loaded)
        originals.append(loaded)

    def restore(_: Optimizer) -> None:
        restore_states(optimizer, originals[0])
        optimizer._broken = None
        optimizer._momenta_are_equal()

    hooks = [  # around torch's part: the last before it, which sees what the others made of it, the first after it
        optimizer.register_load_state_dict_pre_hook(check),
        optimizer.register_load_state_dict_post_hook(restore, prepend=True),
    ]
    try:
        load_state_dict(state_dict)
    finally:
        for hook in hooks:
            hook.remove()


def check_state_dict(optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
    """Raises before anything is loaded; the sentence names the parameter and the key.

    Raises:
        TypeError: no state dict at all.
        ValueError: the checkpoint of another model or another optimizer, or a damaged one.
    """
    check_is_state_dict(state_dict)
    groups = state_dict["param_groups"]
    if len(groups) != len(optimizer.param_groups):
        raise ValueError(
            "torchdion.Dion: the loaded state dict has a different number of parameter groups: "
            f"{len(groups)}, where the optimizer has {len(optimizer.param_groups)}"
        )
    for index, (group, saved) in enumerate(zip(optimizer.param_groups, groups, strict=True)):
        where = f" (parameter group {index} of the state dict)"
        if not isinstance(saved, dict) or not isinstance(saved.get("params"), (list, tuple)):
            raise ValueError(f"torchdion.Dion: a parameter group must be a dict with the list 'params'{where}")
        if len(saved["params"]) != len(group["params"]):
            raise ValueError(
                f"torchdion.Dion: the loaded group doesn't match the size of the optimizer's: {len(saved['params'])} "
                f"parameters, where it has {len(group['params'])}{where}"
            )
        options = dict(saved)
        rename_saved_options(options)
        options = {**optimizer.defaults, **options}
        check_options(options, where)
        for place, (param, key) in enumerate(zip(group["params"], saved["params"], strict=True)):
            state = state_dict["state"].get(key)
            if state and not is_lazy(param):  # whose shape its module's first input tells
                _check_state(state, param, options, name_of(group, place, f" (parameter group {index})"))


def check_is_state_dict(state_dict: Any) -> None:
    if not isinstance(state_dict, dict):
        raise TypeError(f"torchdion.Dion: state_dict must be a dict, got {type(state_dict).__name__}")
    for key, kind in (("state", dict), ("param_groups", list)):
        if not isinstance(state_dict.get(key), kind):
            raise ValueError(
                f"torchdion.Dion: state_dict must have the {kind.__name__} {key!r}, got the keys "
                f"{sorted(map(str, state_dict))[:8]}"
            )


def _check_state(state: Any, param: Tensor, group: dict[str, Any], name: str) -> None:
    if not isinstance(state, dict):
        raise ValueError(f"torchdion.Dion: the state of {name} must be a dict, got {type(state).__name__}")
    algorithm = algorithm_of(param, group)
    keys = tuple(key for key in STATES[algorithm] if key != "step")  # the dion package's is in the group
    check_keys(param, state, keys, name)
    for key in keys:
        _check_tensor(state[key], key, name)
        if key != "Q" and state[key].shape != param.shape:
            raise ValueError(
                f"torchdion.Dion: the state {key!r} of {name} must have its shape {tuple(param.shape)}, "
                f"got {tuple(state[key].shape)}"
            )
    if algorithm == "dion":
        _check_Q(state["Q"], param, group, name)
    if not is_dtensor(param) or any(is_dtensor(state[key]) for key in keys):  # else they are whole
        check_placements(state, param, group, name)
    _check_step(state.get("step", group.get("step", 0)), name)


def restore_states(optimizer: "CheckpointedOptimizer", state_dict: dict[str, Any]) -> None:
    """After torch has cast every state to its parameter's dtype: back to the configured ones, from the original.

    A whole state of a cut parameter is cut. A state without a step of its own (the ``dion`` package counts in the
    group) takes the group's.
    """
    for index, (group, saved_group) in enumerate(zip(optimizer.param_groups, state_dict["param_groups"], strict=True)):
        group["capturable"] = optimizer.defaults["capturable"]  # a matter of this run
        for place, (param, saved) in enumerate(zip(group["params"], saved_group["params"], strict=True)):
            original = state_dict["state"].get(saved)
            if not original:
                continue
            name = name_of(group, place, f" (parameter group {index})")
            state = optimizer.state[param]
            for key in STATE_DTYPES:
                if isinstance(original.get(key), Tensor):
                    dtype = dtype_of(key, param, group)
                    lying = _lying(original[key], key, param, group, optimizer._layouts, name)
                    local = local_part(lying).to(param.device, dtype, copy=True).contiguous()
                    state[key] = state_like(local, param, lying.shape, getattr(lying, "placements", None))
            step = original.get("step", saved_group.get("step", 0))
            device = device_of_step(param, group)
            state["step"] = torch.as_tensor(step, dtype=torch.float32, device=device).detach().clone()


def _lying(original: Tensor, key: str, param: Tensor, group: dict[str, Any], layouts: Layouts, name: str) -> Tensor:
    """A loaded state as its parameter lies."""
    if is_dtensor(original) or not is_dtensor(param):
        return original
    return piece_of_state(original, key, param, group, layouts.of(param, group, name))


def _check_tensor(value: Tensor, key: str, name: str) -> None:
    if not value.is_floating_point() or value.layout != torch.strided:
        raise ValueError(
            f"torchdion.Dion: the state {key!r} of {name} must be a dense floating-point tensor, got {value.dtype}, "
            f"{value.layout}"
        )


def _check_Q(Q: Tensor, param: Tensor, group: dict[str, Any], name: str) -> None:
    if param.numel() == 0:
        return
    *stack, m, n = _C.matrix_sizes(list(param.shape), *form_of(group))
    *counts, rows, r = Q.shape if Q.dim() >= 2 else (-1, -1)
    if counts != stack or rows not in (m, n) or not 1 <= r <= min(m, n):
        allowed = " or ".join(str([*stack, size, "r"]).replace("'", "") for size in dict.fromkeys((m, n)))
        raise ValueError(
            f"torchdion.Dion: the state 'Q' of {name} must have the shape {allowed} with 1 ≤ r ≤ {min(m, n)}, "
            f"got {list(Q.shape)}"
        )


def _check_step(step: Any, name: str) -> None:
    number = step.item() if isinstance(step, Tensor) and step.numel() == 1 and not step.is_meta else step
    is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
    if not is_number or not math.isfinite(number) or number < 0:
        shown = f"a tensor of shape {tuple(step.shape)}" if isinstance(number, Tensor) else repr(number)
        raise ValueError(f"torchdion.Dion: the state 'step' of {name} must be a finite number ≥ 0, got {shown}")
