"""What the ranks of a job agree on before a step: a disagreement is an error on all of them, not a hang."""

from typing import Any, NamedTuple

from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import Optimizer

from torchdion import _C
from torchdion.dtensor import is_dtensor
from torchdion.layout import Layouts
from torchdion.options import CHECKS
from torchdion.parameters import name_of
from torchdion.state import is_capturing


class Shared(NamedTuple):
    """A parameter that other ranks hold too, or other pieces of it."""

    param: Tensor
    group: dict[str, Any]
    name: str
    layout: _C.Layout


def agree(optimizer: Optimizer, layouts: Layouts, agreed: bool, refuses: bool = False) -> set[Tensor]:
    """Waits before each step for the ranks of all layouts, which say whether they can take it.

    Args:
        agreed: the ranks have compared what they take each parameter for. When any has not, all do.
        refuses: this rank cannot take the step, and is about to raise its own error.

    Returns:
        The cut parameters that have no gradient on this rank, but on another one: theirs is zero here.

    Raises:
        ValueError: on every rank, where they differ; the sentence names the parameter and what differs.
        RuntimeError: another rank refuses.
    """
    shared = _shared_parameters(optimizer, layouts)
    if not shared:
        return set()
    if is_capturing(shared[0].param):
        raise RuntimeError(
            "torchdion.Dion: a CUDA graph cannot capture the first step that ranks take: take one before"
        )
    axes = [layouts.axes_of(one.param) for one in shared]
    every_axis = list({id(axis): axis for along in axes for axis in along}.values())
    cuts = [(one.layout.rows, one.layout.cols, one.layout.batch) for one in shared]
    has_gradient = [one.param.grad is not None for one in shared]
    any_refuses, any_is_new, is_uneven = _C.open_step(refuses, not agreed, has_gradient, cuts, every_axis)
    if any_refuses:
        raise RuntimeError("torchdion.Dion: another rank refused this step, and its error says why")
    if any_is_new:
        claims = zip(shared, axes, strict=True)
        _C.check_agreement([(one.name, _properties(one, optimizer), along) for one, along in claims])
    if not is_uneven:
        return set()
    anywhere = zip(shared, _C.any_of_ranks(has_gradient, cuts), strict=True)
    return {one.param for one, is_there in anywhere if is_there and one.param.grad is None}


def _shared_parameters(optimizer: Optimizer, layouts: Layouts) -> list[Shared]:
    shared = []
    for index, group in enumerate(optimizer.param_groups):
        for place, param in enumerate(group["params"]):
            if (layouts.averages or is_dtensor(param)) and not is_lazy(param):
                name = name_of(group, place, f" (parameter group {index})")
                shared.append(Shared(param, group, name, layouts.declared(param, group, name).layout))
    return shared


def _properties(shared: Shared, optimizer: Optimizer) -> list[tuple[str, str]]:
    param, group = shared.param, shared.group
    options = {name: group[name] for name in CHECKS if name in group} | {
        name: float(group[name]) for name in ("lr", "weight_decay")
    }
    state = optimizer.state.get(param, {})
    steps = float(state.get("step", 0))
    has_own_Q = steps > 0 and "Q" in state  # before its first step it is what the options say
    return [
        ("shape", str(tuple(param.shape))),
        ("dtype", str(param.dtype)),
        ("placements", str(param.placements if is_dtensor(param) else "a plain tensor")),
        ("options", ", ".join(f"{name}={value!r}" for name, value in options.items())),
        ("steps taken", f"{steps:g}"),
        ("shape of Q", str(tuple(state["Q"].shape)) if has_own_Q else "none"),
    ]
