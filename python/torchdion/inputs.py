"""What a step gives to the C++ engine: parameters, gradients, states and options, by algorithm."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from torchdion import _C
from torchdion.by_cpu import redistributed
from torchdion.dtensor import check_lies_as, is_dtensor, local_part, local_piece
from torchdion.layout import Piece
from torchdion.layouts import Layouts
from torchdion.optimizer_wide import check_groups
from torchdion.owners import Parts
from torchdion.parameters import check_batch_dims, check_blocks, check_gradient, check_trained, name_of
from torchdion.plain_values import plain
from torchdion.state import check_is_state, check_keys, check_placements, counter_of, create_state, is_begun
from torchdion.table import ALGORITHMS, Algorithm, algorithm_of
from torchdion.words import front, shown
from torchdion.wrappers import Writes, check_plain, readable


class Member(NamedTuple):
    """A parameter that a step updates."""

    param: Tensor
    gradient: Tensor  # this rank's piece
    piece: Piece
    name: str


def engine_groups(
    optimizer: Optimizer,
    layouts: Layouts,
    created: list[Tensor],
    writes: Writes,
    missing: Mapping[Tensor, torch.dtype],
) -> _C.Groups:
    """The parameters that have gradients, in the engine's terms: this rank's pieces, and where they lie.

    Args:
        created: gets the parameters whose states were missing and are new; what others keep there stays.
        writes: gets the parameters that have no memory of their own, to be written once the step has run.
        missing: parameters whose gradient only other ranks have, and its dtype there; it is zero here.

    Raises:
        ValueError: an option that was set after construction is out of its range, or a state or a gradient cannot be.
    """
    options = check_groups(optimizer.param_groups, optimizer.defaults)
    parts = layouts.parts(optimizer.param_groups)
    groups = _C.Groups(capturable=optimizer.defaults["capturable"])
    for index, group in enumerate(optimizer.param_groups):
        where = f" (parameter group {index})"
        members: dict[str, list[Member]] = {name: [] for name in ALGORITHMS}
        for position, param in enumerate(group["params"]):
            member = _member(param, group, layouts, name_of(group, position, where), missing.get(param))
            if member is not None:
                if group["batch_dims"] is not None:
                    check_batch_dims(param, group, member.name)
                members[algorithm_of(param, group).name].append(member)
        for name, ours in members.items():
            if ours:
                _make_states(optimizer, ours, group, parts, created)
                _add(groups, optimizer, ALGORITHMS[name], ours, group, options[index], parts, writes)
    if len(set(map(id, writes.params))) < len(writes.params):
        _refuse_twice(optimizer)
    return groups


def _refuse_twice(optimizer: Optimizer) -> None:
    """Raises ValueError for a parameter that others have put into groups again: two updates of it at once."""
    known: set[int] = set()
    for index, group in enumerate(optimizer.param_groups):
        for position, param in enumerate(group["params"]):
            if id(param) in known:
                name = name_of(group, position, f" (parameter group {index})")
                raise ValueError(f"{front()}: {name} is given twice")
            known.add(id(param))


def _member(
    param: Tensor, group: dict[str, Any], layouts: Layouts, name: str, missing: torch.dtype | None
) -> Member | None:
    if param.grad is None and missing is None:
        return None
    if param.grad is not None:
        check_gradient(param.grad, param, name)
    piece = layouts.of(param, group, name)
    if param.grad is not None:
        gradient = readable(local_piece(_local_gradient(param, name), piece.shape), f"the gradient of {name}")
        return Member(param, gradient, piece, name)
    local = local_piece(param, piece.shape)
    return Member(param, torch.zeros(local.shape, dtype=missing, device=local.device), piece, name)


def _local_gradient(param: Tensor, name: str) -> Tensor:
    """This rank's piece of a gradient, whose sum over ranks may be due yet (Partial).

    Raises:
        ValueError: a plain gradient of a DTensor, or the reverse, or one on another mesh.
    """
    gradient = param.grad
    assert gradient is not None
    if is_dtensor(gradient) and is_dtensor(param) and gradient.device_mesh == param.device_mesh:
        if gradient.placements != param.placements:
            gradient = redistributed(gradient, param.placements)
    else:
        check_lies_as(gradient, param, getattr(param, "placements", ()), f"the gradient of {name}")
    return local_part(gradient)


def _make_states(
    optimizer: Optimizer, members: list[Member], group: dict[str, Any], parts: Parts, created: list[Tensor]
) -> None:
    states = [optimizer.state.get(member.param, {}) for member in members]
    for member, state in zip(members, states, strict=True):
        check_is_state(state, member.name)
    if not [state for state in states if "step" not in state]:
        return
    indices = _indices(optimizer)
    for (param, _, piece, name), state in zip(members, states, strict=True):
        if not is_begun(state):
            _check_form(param, group, name)
            made = create_state(param, group, indices[param], piece, parts.get(param))
            created.append(param)
            state.update(made)
            optimizer.state[param] = state


def _check_form(param: Tensor, group: dict[str, Any], name: str) -> None:
    """As at the door, which a frozen parameter has passed unseen."""
    check_trained(param, name)
    check_blocks(param, group, name)


def _add(
    groups: _C.Groups,
    optimizer: Optimizer,
    algorithm: Algorithm,
    members: list[Member],
    group: dict[str, Any],
    options: _C.GroupOptions,
    parts: Parts,
    writes: Writes,
) -> None:
    """The members of a group with one algorithm: this rank's pieces, and where they lie."""
    keys = [state.name for state in algorithm.states]
    states = [optimizer.state[member.param] for member in members]
    for member, state in zip(members, states, strict=True):
        check_keys(member.param, state, algorithm, member.name)
        check_placements(state, member.param, group, member.name)
        for key in (*keys, "step"):
            check_plain(local_part(state[key]), f"the state {key} of {member.name}")
        if algorithm.factors and not member.piece.layout.is_local:
            factors = [list(state[factor.name].shape) for factor in algorithm.factors]
            sizes = list(member.param.shape)
            _C.check_layout(algorithm.name, sizes, factors, options, member.piece.layout, member.name)
    if parts:
        for member in members:
            if member.param not in parts:
                _check_form(member.param, group, member.name)
    writes.params += [member.param for member in members]
    layouts = [member.piece.layout for member in members]
    is_local = all(layout.is_local for layout in layouts)
    groups.add(
        algorithm.name,
        options,
        X=[writes.to(local_piece(member.param, member.piece.shape), member.name) for member in members],
        G=[member.gradient for member in members],
        states=[[local_part(state[key]) for state in states] for key in keys],
        steps=_counters(members, states, group),
        layouts=[] if is_local else layouts,
        whole_factors=[]
        if is_local
        else [[list(state[factor.name].shape) for state in states] for factor in algorithm.factors],
        shares=[parts[member.param].shares for member in members] if parts else [],
    )


def _counters(members: list[Member], states: list[dict[str, Any]], group: dict[str, Any]) -> list[Tensor]:
    steps = [local_part(state["step"]) for state in states]
    if group["capturable"] or [step for step in steps if not step.is_cpu]:
        return [counter_of(member.param, state, group) for member, state in zip(members, states, strict=True)]
    return steps


def _indices(optimizer: Optimizer) -> dict[Tensor, int]:
    """Each parameter's number among all: what Q's start is drawn by."""
    every = (param for group in optimizer.param_groups for param in group["params"])
    return {param: index for index, param in enumerate(every)}


def gradient_scaling(optimizer: Optimizer, layouts: Layouts) -> tuple[Tensor | None, Tensor | None]:
    """The scale of the gradients and whether one overflowed, where a GradScaler has set them.

    Raises:
        TypeError: they are no numbers.
        ValueError: the optimizer averages over replicas, whose scalers part with the first overflow that one sees.
    """
    scale, overflow = (_tensor(getattr(optimizer, name, None), name) for name in ("grad_scale", "found_inf"))
    if layouts.axes.averages and not (scale is None and overflow is None):
        raise ValueError(
            f"{front()}: a GradScaler must not be used with a replicate_mesh, because each replica's sees only its "
            "own gradients' overflows; train in BF16, which needs none"
        )
    return scale, overflow


def _tensor(number: Any, name: str) -> Tensor | None:
    """What a GradScaler has set; the sum of its flags is a plain 0 where no parameter has a gradient."""
    number = plain(number)
    if number is None or isinstance(number, Tensor):
        return number
    if not isinstance(number, float) and not (isinstance(number, int) and abs(number) < 2**63):
        raise TypeError(f"{front()}: {name} must be a tensor of one element or a number, got {shown(number)}")
    return torch.as_tensor(number, device="cpu")
