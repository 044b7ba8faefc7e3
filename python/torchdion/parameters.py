"""What a parameter is to the optimizer: which algorithm updates it, and whether any can."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from torchdion import _C
from torchdion.mixed_precision import DTYPES
from torchdion.table import ALGORITHMS, algorithm_of, options_of
from torchdion.warning import warn
from torchdion.words import front, shown

# By their marks, because importing their libraries only to refuse them would cost seconds. The second one is also on
# the pieces of a FlatParameter that FSDP1 shows with use_orig_params=True.
_FSDP1_MARKS = ("_is_flat_param", "_fsdp_flattened")


def check_params(params: Any) -> None:
    """Raises TypeError for what holds no parameters at all."""
    if not isinstance(params, Iterable):
        raise TypeError(
            f"{front()}: params must be tensors, (name, tensor) pairs or groups, such as model.parameters(), got "
            f"{type(params).__name__}"
        )


def entries_of(param_group: Any, where: str) -> list[Any]:
    """The group's parameters, named or not, as a list that holds each once."""
    if not isinstance(param_group, dict):
        raise TypeError(f"{front()}: a parameter group must be a dict, got {type(param_group).__name__}")
    if "params" not in param_group:
        raise ValueError(f"{front()}: a parameter group must have the key 'params'{where}")
    params = param_group["params"]
    if isinstance(params, set):
        raise TypeError(f"{front()}: parameters must be in an ordered collection, got a set{where}")
    if isinstance(params, Tensor):
        return [params]
    if not isinstance(params, Iterable):
        raise TypeError(f"{front()}: params must be tensors, got {type(params).__name__}{where}")
    return _each_once(list(params), where)


def _each_once(entries: list[Any], where: str) -> list[Any]:
    """Without those that are given again, of which a warning tells, in torch's words for it."""
    kept: dict[int, Any] = {}
    for index, entry in enumerate(entries):
        tensor = tensor_of(entry)
        if id(tensor) in kept:
            warn(
                f"{front()}: the optimizer contains a parameter group with duplicate parameters: "
                f"{describe(entry, index, where)} is given twice and updated once"
            )
        kept.setdefault(id(tensor), entry)
    return list(kept.values())


def describe(entry: Any, index: int, where: str) -> str:
    """The words for a parameter in an error: its name where it has one, else its position."""
    if isinstance(entry, tuple) and len(entry) == 2:
        return f"parameter {shown(entry[0])}{where}"
    return f"parameter {index}{where}"


def name_of(group: dict[str, Any], position: int, where: str) -> str:
    """The same for the parameter at a position of a group that was added."""
    names = group.get("param_names")
    if isinstance(names, (list, tuple)) and len(names) == len(group["params"]):
        return f"parameter {names[position]!r}{where}"
    return f"parameter {position}{where}"  # also where others have added or removed some, whose names nobody knows


def form_of(group: dict[str, Any]) -> tuple[int, int, bool]:
    """How the matrices of the group's parameters lie in their tensors."""
    return int(group.get("batch_dims") or 0), int(group.get("blocks", 1)), bool(group.get("fan_in_first", False))


def parameters_by_algorithm(groups: list[dict[str, Any]]) -> dict[str, int]:
    """How many parameters each algorithm updates, of those that update some."""
    trained = ((param, group) for group in groups for param in group["params"] if can_be_trained(param))
    # a lazy module's has no shape before its first input
    counts = Counter(algorithm_of(param, group).name for param, group in trained if not is_lazy(param))
    return {name: counts[name] for name in ALGORITHMS if name in counts}


def can_be_trained(param: Tensor) -> bool:
    """True if a step can compute with it: with integers, FP8, complex, sparse, nested or Meta tensors none can."""
    return (
        param.dtype in DTYPES
        and param.layout == torch.strided
        and not param.is_nested
        and _C.has_kernels_for(param.device.type)
    )


def is_left_alone(param: Tensor) -> bool:
    """True if it neither asks for a gradient nor has one."""
    return not param.requires_grad and param.grad is None


def is_passed_over(param: Any) -> bool:
    """True if no step asks more of it than that it gets no gradient."""
    return isinstance(param, Tensor) and is_left_alone(param) and not can_be_trained(param)


def tensor_of(entry: Any) -> Any:
    """The tensor of a group's entry, which may be a pair with its name."""
    return entry[1] if isinstance(entry, tuple) and len(entry) == 2 else entry


def check_parameters(entries: list[Any], group: dict[str, Any], where: str) -> None:
    """Raises ValueError or TypeError with one sentence for the first that cannot be updated."""
    for index, entry in enumerate(entries):
        _check_parameter(tensor_of(entry), group, describe(entry, index, where))


def check_named_algorithm(entries: list[Any], given: dict[str, Any], where: str) -> None:
    """Raises ValueError where a group names an algorithm of matrices, and batch_dims leave none of what has some."""
    name = given.get("algorithm")
    if name is None or not ALGORITHMS[name].takes_matrices or not given.get("batch_dims"):
        return
    for index, entry in enumerate(entries):
        param = tensor_of(entry)
        if is_passed_over(param) or is_lazy(param):
            continue
        if param.dim() >= 2 and param.dim() - given["batch_dims"] < 2:
            raise ValueError(
                f"{front()}: batch_dims must leave a matrix of {describe(entry, index, where)} of shape "
                f"{tuple(param.shape)} to algorithm={name!r}, got {given['batch_dims']}"
            )


def check_is_tensor(param: Any, name: str) -> None:
    if not isinstance(param, Tensor):
        raise TypeError(f"{front()}: {name} must be a tensor, got {type(param).__name__}")


def _check_parameter(param: Any, group: dict[str, Any], name: str) -> None:
    check_is_tensor(param, name)
    if any(hasattr(param, mark) for mark in _FSDP1_MARKS) or type(param).__name__ == "FlatParameter":
        raise ValueError(
            f"{front()}: {name} is FSDP1's FlatParameter or a piece of one, which hides the matrices; use "
            "fully_shard (FSDP2) or no sharding"
        )
    if hasattr(param, "ds_id"):
        raise ValueError(f"{front()}: {name} is partitioned by DeepSpeed, which hides the matrices")
    if is_lazy(param):  # which has no shape before its module's first input
        if not is_left_alone(param):
            check_trained(param, name)
        return
    options = options_of(group)
    if ALGORITHMS[group["algorithm"]].takes_matrices and can_be_trained(param):
        advice = options.advice_on_stack(list(param.shape), name)
        if advice:
            warn(f"{front()}: {advice}")
    options.check_parameter(param, name)  # which asks nothing of one that is left alone until it gets a gradient


def check_trained(param: Tensor, name: str) -> None:
    """Raises ValueError or NotImplementedError with one sentence for a parameter with which no step can compute."""
    if param.layout != torch.strided or param.is_nested:
        raise ValueError(f"{front()}: {name} must be dense, got {'nested' if param.is_nested else param.layout}")
    if param.dtype not in DTYPES:
        raise ValueError(f"{front()}: {name} must be real floating-point, got {param.dtype}")
    if not _C.has_kernels_for(param.device.type):
        raise NotImplementedError(f"{front()}: {name} is on {param.device}, which this build has no kernels for")


def check_gradient(gradient: Tensor, param: Tensor, name: str) -> None:
    """Raises ValueError for a gradient that the kernels cannot read; for a sparse one RuntimeError, as torch does."""
    if gradient.layout == torch.strided and not gradient.is_nested and gradient.dtype in DTYPES:
        return
    check_trained(param, name)
    if gradient.layout != torch.strided:
        raise RuntimeError(f"{front()}: gradients must be dense, got {gradient.layout} for a {tuple(param.shape)}")
    if gradient.is_nested:
        raise ValueError(f"{front()}: gradients must be dense, got a nested tensor")
    raise ValueError(f"{front()}: gradients must be real floating-point, got {gradient.dtype}")
