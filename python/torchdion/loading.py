"""What a state dict must be: all of it is checked before any of it is loaded."""

import math
from collections.abc import Callable
from contextlib import suppress
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import Optimizer

from torchdion import _C
from torchdion.dtensor import is_dtensor, local_part, local_piece, state_like
from torchdion.layouts import Layouts
from torchdion.mixed_precision import name_dtypes
from torchdion.options import DEFAULTS, OF_RUN, as_plain_numbers, check_options, rename_saved_options
from torchdion.other_optimizers import with_our_names
from torchdion.owned_tensor import OwnedTensor
from torchdion.parameters import check_trained, name_of
from torchdion.state import States, check_is_state, check_placements, is_begun, placements_of_state
from torchdion.table import STATE_DTYPES, algorithm_of, options_of
from torchdion.words import front, shortened, shown
from torchdion.wrappers import is_freed, readable

if TYPE_CHECKING:
    from torchdion.checkpoints import CheckpointedOptimizer


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
        ValueError: the checkpoint of another model or another optimizer, or a damaged one.
    """
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
        _C.GroupKeys.choose_algorithm(options, options["algorithm"], True, where)  # which changes none that is named
        for position, (param, key) in enumerate(zip(group["params"], saved["params"], strict=True)):
            name = name_of(group, position, f" (parameter group {index})")
            state = state_dict["state"].get(key, {})
            check_is_state(state, name)
            if _is_of_some_step(state, saved):
                check_trained(param, name)
            for entry, value in state.items():
                if isinstance(value, Tensor) and entry not in ("step", *STATE_DTYPES):
                    _check_foreign(value, entry, name)


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
    return {**DEFAULTS, **optimizer.defaults, **options, **{name: optimizer.defaults[name] for name in OF_RUN}}


def _is_of_some_step(state: dict[str, Any], saved: dict[str, Any]) -> bool:
    """True if its parameter has taken one: before, a group of ours has nothing there but what others keep.

    A state that another optimizer has saved is no such.
    """
    return is_begun(state) if "scalar_algorithm" in saved else bool(state)


def loaded_states(
    optimizer: "CheckpointedOptimizer", state_dict: dict[str, Any], divisors: dict[int | str, float]
) -> States:
    """The tensors of a state dict as copies, in the configured dtypes, on the devices of their parameters.

    A whole state of a cut parameter is cut. A state without a step of its own (the ``dion`` package counts in the
    group) takes the group's.

    Args:
        divisors: of momenta, see :func:`with_our_names`.

    Raises:
        ValueError: a state is not that of its parameter and its algorithm.
    """
    takers: list[_Taker] = []
    groups = []
    for index, (group, saved) in enumerate(zip(optimizer.param_groups, state_dict["param_groups"], strict=True)):
        options = _options_of(optimizer, saved)
        of_group = []
        for position, (param, key) in enumerate(zip(group["params"], saved["params"], strict=True)):
            original = state_dict["state"].get(key)
            state = original if original and _is_of_some_step(original, saved) else None
            name = name_of(group, position, f" (parameter group {index})")
            of_group.append(_Taker(param, options, state, name, divisors.get(key, 1)))
        shown = [taker.shown(optimizer._layouts) for taker in of_group]
        groups.append((options_of(options, f" (parameter group {index} of the state dict)"), shown))
        takers += of_group
    loaded = _C.loaded_states(groups)
    return {
        taker.param: taker.taken(tensors) for taker, tensors in zip(takers, loaded, strict=True) if tensors is not None
    }


class _Taker(NamedTuple):
    """A parameter under the options of a loaded group, and its saved state; None: there is none."""

    param: Tensor
    group: dict[str, Any]
    state: dict[str, Any] | None
    name: str
    divisor: float

    def shown(self, layouts: Layouts) -> tuple[Any, ...]:
        """As the engine takes it."""
        param, local, layout = self.param, self.param, _C.Layout()
        if is_lazy(param):  # whose shape its module's first input tells: that of its momentum, until then
            momentum = None if self.state is None else self.state.get("momentum")
            shape = momentum.shape if isinstance(momentum, Tensor) and not momentum.is_nested else (0,)
            param = local = torch.empty((), dtype=param.dtype, device=param.device).expand(shape)
        elif not param.is_nested and (self.state is not None or self.group["owners"] == "shard"):
            piece = layouts.declared(param, self.group, self.name)
            local, layout = local_piece(param, piece.shape), piece.layout
        saved = None if self.state is None else self._saved(param, self.state)
        return param, local, layout, self.name, saved

    def _saved(self, param: Tensor, state: dict[str, Any]) -> tuple[Any, ...]:
        own = {declared.name for declared in algorithm_of(param, self.group).states}
        tensors = {}
        for key in STATE_DTYPES:
            value = state.get(key)
            if isinstance(value, Tensor):
                tensors[key] = _piece(value, f"the state {key} of {self.name}")
            elif key in own and key in state:  # what is no tensor is no state of another algorithm
                raise ValueError(
                    f"{front()}: the state {key} of {self.name} must be a tensor, got {type(value).__name__}"
                )
        return *_count(state.get("step", self.group.get("step", 0))), self.divisor, tensors

    def taken(self, tensors: dict[str, tuple[Tensor, list[int]]]) -> dict[str, Tensor]:
        """What the engine has made of the state, as it lies in the optimizer."""
        assert self.state is not None
        declared = () if is_lazy(self.param) else algorithm_of(self.param, self.group).states
        if declared and (not is_dtensor(self.param) or any(is_dtensor(self.state[each.name]) for each in declared)):
            check_placements(self.state, self.param, self.group, self.name)  # else they are whole
        taken = {key: tensor for key, (tensor, _) in tensors.items()}
        for each in declared if is_dtensor(self.param) else ():
            tensor, sizes = tensors[each.name]
            placements = placements_of_state(each, sizes, self.param, self.group)
            taken[each.name] = state_like(tensor, self.param, sizes, placements)
        return taken


def _detached(tensor: Tensor) -> Tensor:
    """A tensor that escaped from torch.func, which the engine refuses, cannot be detached."""
    return tensor if is_freed(tensor) else tensor.detach()


def _piece(value: Tensor, what: str) -> tuple[Tensor, list[int] | None, int | None]:
    """This rank's, with the sizes of the whole where it is a piece, and where an owner's part begins."""
    if value.is_nested or value.layout != torch.strided:
        return value, None, None
    if isinstance(value, OwnedTensor):
        return _detached(readable(value.part, what)), list(value.shape), value.begin
    local = _detached(readable(local_part(value), what))
    return local, list(value.shape) if is_dtensor(value) else None, None


def _without_own(state_dict: dict[str, Any]) -> dict[str, Any]:
    """What is left to torch: options, and entries of states that are none of ours, as those that no parameter has."""
    keys = {key for group in state_dict["param_groups"] for key in group["params"]}
    states = dict(state_dict["state"])
    for key in keys & states.keys():
        states[key] = {name: value for name, value in states[key].items() if name not in ("step", *STATE_DTYPES)}
    return {**state_dict, "state": states}


def _check_foreign(value: Tensor, key: Any, name: str) -> None:
    """Raises ValueError for a tensor of others that torch cannot copy."""
    if not value.is_nested and value.layout == torch.strided and is_freed(local_part(value)):
        raise ValueError(f"{front()}: the state {key} of {name} must have memory, got {value.device} without any")


def _count(step: Any) -> tuple[float, str]:
    """A count of steps, and how a sentence shows it; NaN: it is none."""
    is_read = isinstance(step, Tensor) and _C.has_memory(step) and step.numel() == 1
    number = step.item() if is_read else step
    if isinstance(number, Tensor):
        return math.nan, f"a {type(step).__name__}" + ("" if number.is_nested else f" of shape {list(number.shape)}")
    is_number = isinstance(number, Real) and not isinstance(number, bool)
    is_counted = is_number and abs(number) <= 2**53  # else no float holds it, or none but another one
    return float(number) if is_counted else math.nan, shown(number)
