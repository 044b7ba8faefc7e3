"""What a state dict must be: all of it is checked before any of it is loaded."""

import math
from collections.abc import Callable
from contextlib import suppress
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import Optimizer

from torchdion import _C
from torchdion.dtensor import is_dtensor, is_plain, local_part, state_like
from torchdion.layouts import Layouts
from torchdion.mixed_precision import dtype_of, name_dtypes
from torchdion.optimizer_wide import optimizer_wide
from torchdion.options import OF_RUN, as_plain_numbers, check_options, rename_saved_options
from torchdion.other_muons import choose_algorithm
from torchdion.other_optimizers import with_our_names
from torchdion.owned_tensor import OwnedTensor
from torchdion.owners import Part
from torchdion.parameters import check_blocks, check_trained, name_of
from torchdion.pieces import piece_of_state
from torchdion.state import check_is_state, check_keys, check_placements, device_of_step, is_begun, without_own
from torchdion.table import STATE_DTYPES, algorithm_of, options_of
from torchdion.words import front, shortened, shown
from torchdion.wrappers import is_freed, readable

if TYPE_CHECKING:
    from torchdion.checkpoints import CheckpointedOptimizer

States = dict[Tensor, dict[str, Tensor]]
"""The tensors of each parameter's state that are ours."""


def load_checked(
    optimizer: "CheckpointedOptimizer", load_state_dict: Callable[[dict[str, Any]], None], state_dict: dict[str, Any]
) -> None:
    """Loads by torch's own method, checks before it writes and gives states their configured dtypes after."""
    states: States = {}
    torch_copies: list[bool] = []
    check_is_state_dict(state_dict)

    def check(_: Optimizer, given: dict[str, Any]) -> dict[str, Any]:
        check_is_state_dict(given)
        loaded, divisors = with_our_names(given, optimizer.param_groups)
        check_state_dict(optimizer, loaded)
        states.update(loaded_states(optimizer, loaded, divisors))
        torch_copies.append(True)
        return _without_own(loaded)

    def restore(_: Optimizer) -> None:
        torch_copies.clear()
        for group in optimizer.param_groups:
            group |= {name: optimizer.defaults[name] for name in OF_RUN}
        for param, state in states.items():
            optimizer.state[param] = state | optimizer.state.get(param, {})
        optimizer._core.loaded(optimizer, optimizer.defaults["capturable"])

    hooks = [  # around torch's part: the last before it, which sees what the others made of it, the first after it
        optimizer.register_load_state_dict_pre_hook(check),
        optimizer.register_load_state_dict_post_hook(restore, prepend=True),
    ]
    with suppress(Exception):  # its states go; where this is refused, the optimizer stays broken
        optimizer._flush()
    before = dict(vars(optimizer))
    try:
        load_state_dict(state_dict)
    except BaseException as error:
        vars(optimizer).update(before)  # loading replaces groups and states, and writes to none
        if torch_copies and isinstance(error, Exception):
            reason = shortened(str(error))
            raise ValueError(f"{front()}: state_dict must hold what torch can copy, got {reason}") from error
        raise
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
            f"{front()}: the loaded state dict has a different number of parameter groups: "
            f"{len(groups)}, where the optimizer has {len(optimizer.param_groups)}"
        )
    for key in state_dict["state"]:
        if not _is_key(key):
            raise ValueError(f"{front()}: the keys of 'state' must be numbers or names, got {shown(key)}")
    known: set[Any] = set()
    for index, (group, saved) in enumerate(zip(optimizer.param_groups, groups, strict=True)):
        where = f" (parameter group {index} of the state dict)"
        if not isinstance(saved, dict) or not isinstance(saved.get("params"), (list, tuple)):
            raise ValueError(f"{front()}: a parameter group must be a dict with the list 'params'{where}")
        if len(saved["params"]) != len(group["params"]):
            raise ValueError(
                f"{front()}: the loaded group doesn't match the size of the optimizer's: {len(saved['params'])} "
                f"parameters, where it has {len(group['params'])}{where}"
            )
        _check_names(saved, known, where)
        options = _options_of(optimizer, saved)
        check_options(options, where)
        choose_algorithm(options, options["algorithm"], True, where)  # which changes none that is named
        for position, (param, key) in enumerate(zip(group["params"], saved["params"], strict=True)):
            name = name_of(group, position, f" (parameter group {index})")
            state = state_dict["state"].get(key, {})
            check_is_state(state, name)
            for entry, value in state.items():
                if isinstance(value, Tensor) and entry != "step":
                    _check_tensor(value.part if isinstance(value, OwnedTensor) else value, entry, name)
            if _is_of_some_step(state, saved):
                _check_state(state, param, options, name)
    optimizer_wide([_options_of(optimizer, saved) for saved in groups], " of the state dict")


def check_is_state_dict(state_dict: Any) -> None:
    """Raises TypeError or ValueError for what has not the form of any optimizer's."""
    if not isinstance(state_dict, dict):
        raise TypeError(f"{front()}: state_dict must be a dict, got {type(state_dict).__name__}")
    for key, kind in (("state", dict), ("param_groups", list)):
        if not isinstance(state_dict.get(key), kind):
            found = f"one of type {type(state_dict[key]).__name__}" if key in state_dict else ""
            raise ValueError(
                f"{front()}: state_dict must have the {kind.__name__} {key!r}, got "
                + (found or f"the keys {shown(list(state_dict))}")
            )


def _is_key(value: Any) -> bool:
    """Whether a state dict may call a parameter so."""
    return isinstance(value, (Integral, str)) and not isinstance(value, bool)


def _check_names(saved: dict[str, Any], known: set[Any], where: str) -> None:
    """Of the parameters of a saved group: those that states have as keys, and those that people read.

    Args:
        known: keys of the groups before; gets those of this one.
    """
    for key in saved["params"]:
        if not _is_key(key) or key in known:
            again = " again" if _is_key(key) else ""
            raise ValueError(f"{front()}: 'params' must be distinct numbers or names, got {shown(key)}{again}{where}")
        known.add(key)
    names = saved.get("param_names")
    is_list = isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
    if names is not None and not is_list:  # there are as many as params unless others have added or removed some
        raise ValueError(f"{front()}: 'param_names' must be a list of str, got {shown(names)}{where}")


def _options_of(optimizer: Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
    """A group's options once it is loaded."""
    options = as_plain_numbers(saved)
    rename_saved_options(options)
    name_dtypes(options)
    return {**optimizer.defaults, **options, **{name: optimizer.defaults[name] for name in OF_RUN}}


def _is_of_some_step(state: dict[str, Any], saved: dict[str, Any]) -> bool:
    """True if its parameter has taken one: before, a group of ours has nothing there but what others keep.

    A state that another optimizer has saved is no such.
    """
    return is_begun(state) if "scalar_algorithm" in saved else bool(state)


def _check_state(state: Any, param: Tensor, group: dict[str, Any], name: str) -> None:
    check_trained(param, name)
    _check_step(state.get("step", group.get("step", 0)), name)
    if is_lazy(param):  # whose shape its module's first input tells
        return
    algorithm, options = algorithm_of(param, group), options_of(group)
    check_blocks(param, group, name)
    check_keys(param, state, algorithm, name, is_counted=False)
    for declared in algorithm.states:
        if param.numel() > 0 or declared.shape == "like_parameter":
            sizes = list(state[declared.name].shape), list(param.shape)
            _C.check_loaded_sizes(algorithm.name, declared.name, *sizes, options, name)
    if not is_dtensor(param) or any(is_dtensor(state[declared.name]) for declared in algorithm.states):
        check_placements(state, param, group, name)  # else they are whole


def loaded_states(
    optimizer: "CheckpointedOptimizer", state_dict: dict[str, Any], divisors: dict[int | str, float]
) -> States:
    """The tensors of a checked state dict as copies, in the configured dtypes, on the devices of their parameters.

    A whole state of a cut parameter is cut. A state without a step of its own (the ``dion`` package counts in the
    group) takes the group's.

    Args:
        divisors: of momenta, see :func:`with_our_names`.
    """
    states: States = {}
    groups = [_options_of(optimizer, saved) for saved in state_dict["param_groups"]]
    own = [
        {**options, "params": group["params"]} for options, group in zip(groups, optimizer.param_groups, strict=True)
    ]
    parts = optimizer._layouts.parts(own)
    for index, (group, saved) in enumerate(zip(optimizer.param_groups, state_dict["param_groups"], strict=True)):
        options = groups[index]
        for position, (param, key) in enumerate(zip(group["params"], saved["params"], strict=True)):
            original = state_dict["state"].get(key)
            if original and _is_of_some_step(original, saved):
                name = name_of(group, position, f" (parameter group {index})")
                layouts, divisor = optimizer._layouts, divisors.get(key, 1)
                states[param] = _loaded_state(original, param, options, layouts, parts.get(param), name, divisor)
    return states


@torch.no_grad()
def _loaded_state(
    original: dict[str, Any],
    param: Tensor,
    group: dict[str, Any],
    layouts: Layouts,
    part: Part | None,
    name: str,
    divisor: float,
) -> dict[str, Tensor]:
    step = float(original.get("step", group.get("step", 0)))
    state = {"step": torch.tensor(step, dtype=torch.float32, device=device_of_step(param, group))}
    for key in STATE_DTYPES:
        if isinstance(original.get(key), Tensor):
            owned = _owned(original[key].detach(), key, param, part, name)
            lying = _lying(owned, key, param, group, layouts, name)
            plain = readable(local_part(lying), f"the state {key} of {name}")
            if key == "momentum" and divisor != 1:  # never in a half, which may not hold it
                plain = (plain if plain.dtype == torch.float64 else plain.float()) / divisor
            local = _C.stored_as(plain, dtype_of(key, param, group), param.device).contiguous()
            state[key] = state_like(local, param, lying.shape, getattr(lying, "placements", None))
    return state


def _without_own(state_dict: dict[str, Any]) -> dict[str, Any]:
    """What is left to torch: options, and entries of states that are none of ours, as those that no parameter has."""
    keys = {key for group in state_dict["param_groups"] for key in group["params"]}
    states = {key: without_own(state) if key in keys else state for key, state in state_dict["state"].items()}
    return {**state_dict, "state": states}


def _owned(original: Tensor, key: str, param: Tensor, part: Part | None, name: str) -> Tensor:
    """What this rank owns of a loaded state, or all of it."""
    if not isinstance(original, OwnedTensor):
        return original if part is None else part.of(original, param)
    expected = None if part is None else _expected(part, param, list(original.shape))
    if expected is None or (expected.part.shape, expected.begin) != (original.part.shape, original.begin):
        own = "whole" if expected is None else f"whole, or what this rank owns, {_rows(expected)} of dimension 0"
        raise ValueError(
            f"{front()}: the state {key} of {name} must be {own}, got {_rows(original)} of {tuple(original.shape)}; "
            "whole_state_dict() and torch.distributed.checkpoint move states to other ranks"
        )
    return original.part


def _expected(part: Part, param: Tensor, whole: list[int]) -> OwnedTensor:
    return part.shown(torch.empty(part.sizes(whole, param), device="meta"), whole)


def _rows(owned: OwnedTensor) -> str:
    if owned.part.numel() == 0:
        return "nothing"
    return f"[{owned.begin}, {owned.begin + (len(owned.part) if owned.dim() else 1)})"


def _lying(original: Tensor, key: str, param: Tensor, group: dict[str, Any], layouts: Layouts, name: str) -> Tensor:
    """A loaded state as its parameter lies."""
    if is_dtensor(original) or not is_dtensor(param):
        return original
    return piece_of_state(original, key, param, group, layouts.of(param, group, name))


def _check_tensor(value: Tensor, key: str, name: str) -> None:
    if value.is_nested or value.layout != torch.strided:
        if key not in STATE_DTYPES:
            return  # torch copies what others keep there
        raise ValueError(
            f"{front()}: the state {key} of {name} must be a dense floating-point tensor, got {value.dtype}, "
            f"{'nested' if value.is_nested else value.layout}"
        )
    plain = local_part(value)
    if key in STATE_DTYPES and is_plain(plain):
        _C.check_loaded_tensor(plain, key, name)
    elif is_freed(plain):
        raise ValueError(f"{front()}: the state {key} of {name} must have memory, got {value.device} without any")


def _check_step(step: Any, name: str) -> None:
    is_read = isinstance(step, Tensor) and _C.has_memory(step) and step.numel() == 1
    number = step.item() if is_read else step
    if isinstance(number, Tensor):
        sizes = "" if number.is_nested else f" of shape {list(number.shape)}"
        _C.check_loaded_step(math.nan, f"a {type(step).__name__}{sizes}", name)
    is_number = isinstance(number, Real) and not isinstance(number, bool)
    is_counted = is_number and abs(number) <= 2**53  # else no float holds it, or none but another one
    _C.check_loaded_step(float(number) if is_counted else math.nan, shown(number), name)
