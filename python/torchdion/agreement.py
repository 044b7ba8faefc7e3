"""What the ranks of a job agree on before they communicate: a disagreement is an error on all of them, not a hang."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import Optimizer

from torchdion import _C
from torchdion.dtensor import is_dtensor
from torchdion.fixed_options import RANKS
from torchdion.layouts import Layouts
from torchdion.optimizer_wide import check_groups
from torchdion.parameters import is_left_alone, name_of
from torchdion.state import is_begun, is_capturing
from torchdion.table import STATE_DTYPES, options_of
from torchdion.torch_versions import gradient_dtype
from torchdion.words import front
from torchdion.written_keys import look_at

if TYPE_CHECKING:
    from torchdion.replicas import ReplicatedOptimizer

Prepared = TypeVar("Prepared")
Missing = dict[Tensor, torch.dtype]
"""The parameters that have no gradient on this rank but on another one, where it is zero here: its dtype there."""


class Shared(NamedTuple):
    """A parameter that other ranks hold too, or other pieces of it."""

    param: Tensor
    group: dict[str, Any]
    group_index: int
    name: str
    axes: list[_C.Axis]  # of the ranks that hold it too


def agree(
    optimizer: "ReplicatedOptimizer",
    layouts: Layouts,
    operation: _C.Operation = _C.Operation.step,
    options: dict[str, Any] | None = None,
    copies: ProcessGroup | None = None,
    provide: Callable[[Missing], object] | None = None,
    digests: Callable[[list[Shared]], list[int]] | None = None,
    compares: bool = False,
) -> set[Tensor] | None:
    """Waits for the ranks of all layouts, which say what they are about to do and what they take everything for.

    Args:
        operation: what all ranks do now.
        options: that the operation gives to all groups.
        copies: other ranks that take part, with copies of everything.
        provide: called on every rank where any lacks a gradient that another one has; may raise on this rank alone.
        digests: of what this rank holds of parameters of which replicas must hold the same.
        compares: replicas compare them.

    Returns:
        The parameters that are not the same on all replicas; None: replicas have found no difference, or not looked.

    Raises:
        ValueError: on every rank, where they differ; the sentence names the parameter or option and what differs.
        RuntimeError: another rank refuses, or does something else.
    """
    shared = _shared(optimizer, layouts, copies, options or {})
    if not shared:
        return None
    if is_capturing(shared[0].param):  # asked first: claims wait for devices
        raise RuntimeError(f"{front()}: a CUDA graph cannot capture the first step that ranks take: take one before")
    with refusing(optimizer, layouts, operation, copies):
        claims = _claims(optimizer, layouts, shared, operation)

    def missing_of(gradients: list[torch.dtype | None]) -> Missing:
        of_params = zip(shared, gradients[-len(shared) :], strict=True)
        return {one.param: dtype for one, dtype in of_params if dtype is not None and one.param.grad is None}

    def held_copies() -> list[tuple[int, _C.Axis, int]]:
        assert digests is not None
        axes = [layouts.axes.of_equals(one.group) for one in shared]
        indices = [index for index, axis in enumerate(axes) if not axis.absent]
        found = digests([shared[index] for index in indices])
        first = len(claims) - len(shared)
        return [(first + index, axes[index], digest) for index, digest in zip(indices, found, strict=True)]

    apart = _C.agree(
        operation,
        False,
        claims,
        provide and (lambda gradients: provide(missing_of(gradients))),
        compares=compares,
        copies=held_copies if digests else None,
    )
    return (
        {one.param for one, is_apart in zip(shared, apart[-len(shared) :], strict=True) if is_apart} if apart else None
    )


def begin(
    optimizer: "ReplicatedOptimizer",
    layouts: Layouts,
    operation: _C.Operation,
    prepare: Callable[[], Prepared],
    options: dict[str, Any] | None = None,
    copies: ProcessGroup | None = None,
) -> Prepared:
    """Agrees on what is no step, once every rank has obeyed what its groups say and prepared what it needs.

    Args:
        prepare: what may raise on this rank alone; its result is returned.
        operation, options, copies: as of :func:`agree`, which also says what is raised.
    """
    with refusing(optimizer, layouts, operation, copies):
        # Q get the ranks that others have written: there is nothing to warn of, once they have.
        put_off = RANKS if operation is _C.Operation.resize_rank else frozenset()
        look_at(optimizer.param_groups, optimizer._snapshots, optimizer.defaults, optimizer.state, put_off)
        check_groups([group | (options or {}) for group in optimizer.param_groups], optimizer.defaults)
        prepared = prepare()
    agree(optimizer, layouts, operation, options, copies)
    return prepared


@contextmanager
def refusing(
    optimizer: Optimizer,
    layouts: Layouts,
    operation: _C.Operation = _C.Operation.step,
    copies: ProcessGroup | None = None,
) -> Iterator[None]:
    """Where what this rank does in here raises, the others are told, which wait for it in agree()."""
    try:
        yield
    except Exception:
        with suppress(Exception):  # this rank's own error says more
            shared = _shared(optimizer, layouts, copies)
            if shared and not is_capturing(shared[0].param):
                # Nothing but who is to hear of it: what is wrong may be just what a claim would be made of.
                _C.agree(operation, True, [_C.Claim(one.name, [], one.axes) for one in shared])
        raise


def _shared(
    optimizer: Optimizer, layouts: Layouts, copies: ProcessGroup | None, options: dict[str, Any] | None = None
) -> list[Shared]:
    of_copies = [] if copies is None else [_C.Axis(copies, name="copies")]
    shared = []
    for index, group in enumerate(optimizer.param_groups):
        of_group = group | (options or {})
        for position, param in enumerate(group["params"]):
            if is_lazy(param):
                continue
            axes = layouts.axes.of(param) + of_copies
            if axes or is_dtensor(param):
                name = name_of(group, position, f" (parameter group {index})")
                shared.append(Shared(param, of_group, index, name, axes))
    return shared


def _claims(
    optimizer: "ReplicatedOptimizer", layouts: Layouts, shared: list[Shared], operation: _C.Operation
) -> list[_C.Claim]:
    """Of the optimizer and its groups, then of each parameter."""
    options = {one.group_index: one.group for one in shared}
    groups = [
        options_of(options.get(index, group), f" (parameter group {index})")
        for index, group in enumerate(optimizer.param_groups)
    ]
    held = [_held(one, optimizer, layouts, operation) for one in shared]
    return _C.claims_of(held, groups, _of_optimizer(optimizer), operation)


def _of_optimizer(optimizer: "ReplicatedOptimizer") -> list[tuple[str, str]]:
    scaling = {
        name: "none" if getattr(optimizer, name, None) is None else "set" for name in ("grad_scale", "found_inf")
    }
    capturable = {"capturable": repr(optimizer.defaults["capturable"])}  # one of the defaults, not of a group alone
    momenta = "each replica's own" if optimizer._may_be_decoupled() else "equal"
    return [*scaling.items(), *capturable.items(), ("momenta", momenta)]


def _held(shared: Shared, optimizer: Optimizer, layouts: Layouts, operation: _C.Operation) -> _C.Held:
    param, _, group_index, name, axes = shared
    state = optimizer.state.get(param, {})
    of_step: dict[str, Any] = {}
    if operation == _C.Operation.step:
        of_step["gradient"] = param.grad.dtype if param.grad is not None else None
        of_step["shared"] = _axes_of_gradient(shared, layouts)
    tensors = [(key, state[key]) for key in STATE_DTYPES if isinstance(state.get(key), Tensor)]
    return _C.Held(
        name=name,
        group=group_index,
        sizes=[] if param.is_nested else list(param.shape),
        dtype=param.dtype,
        device=param.device.type,
        layout=str(param.placements) if is_dtensor(param) else "a plain tensor",
        requires_grad=param.requires_grad,
        steps=float(state.get("step", 0)) if is_begun(state) else None,
        states=[(key, tensor.dtype, list(tensor.shape)) for key, tensor in tensors],
        axes=axes,
        **of_step,
    )


def _axes_of_gradient(shared: Shared, layouts: Layouts) -> list[_C.Axis]:
    """Along which a gradient that is missing here is zero."""
    try:
        layout = layouts.declared(shared.param, shared.group, shared.name).layout
    except (ValueError, RuntimeError):
        if is_left_alone(shared.param):  # it may lie as no algorithm can follow, or have no shape
            return shared.axes
        raise
    return [layout.rows, layout.cols, layout.batch, layout.replicas]


def missing_when_alone(optimizer: Optimizer, layouts: Layouts) -> Missing:
    """Where ranks exchange no messages: zero are the missing gradients of parameters that replicas have stepped."""
    if not layouts.axes.averages:
        return {}
    params = (param for group in optimizer.param_groups for param in group["params"])
    due = (param for param in params if param.grad is None and param.requires_grad)
    stepped = (param for param in due if is_begun(optimizer.state.get(param)))
    return {param: gradient_dtype(param) for param in stepped}
