"""What a step hands to the C++ engine: parameters, gradients, states and hyperparameters, by algorithm."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from torchdion import _C
from torchdion.dtensor import local_gradient, local_part, local_piece
from torchdion.layout import Layouts, Place, check_orthonormalize
from torchdion.optimizer_wide import check_groups
from torchdion.parameters import algorithm_of, check_gradient, form_of, name_of
from torchdion.state import STATES, check_is_state, check_keys, check_placements, create_state, orientation_of
from torchdion.words import shown
from torchdion.wrappers import Writes, check_plain, readable


class Member(NamedTuple):
    """A parameter that a step updates."""

    param: Tensor
    gradient: Tensor  # this rank's piece
    place: Place
    name: str


class Handed(NamedTuple):
    """Parameters of one group and algorithm as the engine takes them: this rank's pieces, and where they lie."""

    lists: list[list[Tensor]]
    layouts: list[_C.Layout]  # empty where all are whole, as the next list
    whole_Q: list[list[int]]


def engine_groups(
    optimizer: Optimizer,
    layouts: Layouts,
    created: list[Tensor],
    writes: Writes,
    missing: Mapping[Tensor, torch.dtype],
) -> _C.Groups:
    """The parameters that have gradients, in the engine's terms: this rank's pieces, and where they lie.

    Args:
        created: gets the parameters whose states were missing and are new.
        writes: gets the parameters that have no memory of their own, to be written once the step has run.
        missing: parameters whose gradient only other ranks have, and its dtype there; it is zero here.

    Raises:
        ValueError: an option that was set after construction is out of its range, or a state or a gradient cannot be.
    """
    check_groups(optimizer.param_groups, optimizer.defaults)
    groups = _C.Groups(capturable=optimizer.defaults["capturable"])
    for index, group in enumerate(optimizer.param_groups):
        where = f" (parameter group {index})"
        members: dict[str, list[Member]] = {algorithm: [] for algorithm in STATES}
        for place, param in enumerate(group["params"]):
            member = _member(param, group, layouts, name_of(group, place, where), missing.get(param))
            if member is not None:
                members[algorithm_of(param, group)].append(member)
        for algorithm, ours in members.items():
            if ours:
                _ADD[algorithm](groups, _handed(optimizer, ours, group, STATES[algorithm], created, writes), group)
    return groups


def _member(
    param: Tensor, group: dict[str, Any], layouts: Layouts, name: str, missing: torch.dtype | None
) -> Member | None:
    if param.grad is None and missing is None:
        return None
    if param.grad is not None:
        check_gradient(param.grad, param)
    place = layouts.of(param, group, name)
    if param.grad is not None:
        gradient = readable(local_piece(local_gradient(param, name), place.shape), f"the gradient of {name}")
        return Member(param, gradient, place, name)
    piece = local_piece(param, place.shape)
    return Member(param, torch.zeros(piece.shape, dtype=missing, device=piece.device), place, name)


def _shared(group: dict[str, Any], handed: Handed) -> tuple[dict[str, Any], _C.Multipliers]:
    """Hyperparameters that all algorithms have, and what a captured step reads from the device to multiply them."""
    on_device: dict[str, Tensor] = {}
    numbers: dict[str, float] = {}
    for name in ("lr", "weight_decay"):
        value = group[name]
        if group["capturable"] and isinstance(value, Tensor) and value.device.type == handed.lists[0][0].device.type:
            on_device[name], numbers[name] = value, 1.0
        else:
            numbers[name] = float(value)
    numbers["lr"] *= group["lr_multiplier"]
    return {**numbers, "maximize": group["maximize"]}, _C.Multipliers(**on_device)


def _add_dion(groups: _C.Groups, handed: Handed, group: dict[str, Any]) -> None:
    shared, multipliers = _shared(group, handed)
    hyper = _C.DionHyperparameters(
        **shared,
        mu=group["mu"],
        orthonormalize=_C.Orthonormalize.__members__[group["orthonormalize"]],
        rcqr_oversample=group["rcqr_oversample"],
        seed=group["seed"],
        precision=_C.Precision.__members__[group["precision"]],
    )
    orientation = _C.Orientation.__members__[group["orientation"]]
    groups.add_dion(
        *handed.lists,
        hyper,
        *form_of(group),
        orientation,
        handed.layouts,
        handed.whole_Q,
        multipliers,
        group["skip_zero_gradients"],
    )


def _add_lion(groups: _C.Groups, handed: Handed, group: dict[str, Any]) -> None:
    shared, multipliers = _shared(group, handed)
    beta1, beta2 = group["betas"]
    hyper = _C.LionHyperparameters(**shared, beta1=beta1, beta2=beta2)
    groups.add_lion(*handed.lists, hyper, handed.layouts, multipliers)


def _add_adamw(groups: _C.Groups, handed: Handed, group: dict[str, Any]) -> None:
    shared, multipliers = _shared(group, handed)
    beta1, beta2 = group["betas"]
    hyper = _C.AdamWHyperparameters(**shared, beta1=beta1, beta2=beta2, epsilon=group["epsilon"])
    groups.add_adamw(*handed.lists, hyper, handed.layouts, multipliers)


_ADD = {"dion": _add_dion, "lion": _add_lion, "adamw": _add_adamw}


def _handed(
    optimizer: Optimizer,
    members: list[Member],
    group: dict[str, Any],
    keys: tuple[str, ...],
    created: list[Tensor],
    writes: Writes,
) -> Handed:
    states = [optimizer.state.get(member.param, {}) for member in members]
    for member, state in zip(members, states, strict=True):
        check_is_state(state, member.name)
    if not all(states):
        indices = _indices(optimizer)
        for i, (param, _, place, _) in enumerate(members):
            if not states[i]:
                states[i] = create_state(param, group, indices[param], place)
                optimizer.state[param] = states[i]
                created.append(param)
    for member, state in zip(members, states, strict=True):
        check_keys(member.param, state, keys, member.name)
        check_placements(state, member.param, group, member.name)
        for key in keys:
            check_plain(local_part(state[key]), f"the state {key!r} of {member.name}")
        if "Q" in keys:
            orientation = orientation_of(state["Q"], member.param, group)
            check_orthonormalize(member.place.layout, orientation, group, member.name)
    writes.params += [member.param for member in members]
    lists = [
        [writes.to(local_piece(member.param, member.place.shape), member.name) for member in members],
        [member.gradient for member in members],
        *([local_part(state[key]) for state in states] for key in keys),
    ]
    layouts = [member.place.layout for member in members]
    if all(layout.is_local for layout in layouts):
        return Handed(lists, [], [])
    return Handed(lists, layouts, [list(state["Q"].shape) for state in states] if "Q" in keys else [])


def _indices(optimizer: Optimizer) -> dict[Tensor, int]:
    """Each parameter's place among all: what Q's start is drawn by."""
    every = (param for group in optimizer.param_groups for param in group["params"])
    return {param: index for index, param in enumerate(every)}


def gradient_scaling(optimizer: Optimizer, layouts: Layouts) -> tuple[Tensor | None, Tensor | None]:
    """The scale of the gradients and whether one overflowed, where a GradScaler has set them.

    Raises:
        TypeError: they are no numbers.
        ValueError: the optimizer averages over replicas, whose scalers part with the first overflow that one sees.
    """
    scale, overflow = (_tensor(getattr(optimizer, name, None), name) for name in ("grad_scale", "found_inf"))
    if layouts.averages and not (scale is None and overflow is None):
        raise ValueError(
            "torchdion.Dion: a GradScaler must not be used with a replicate_mesh, because each replica's sees only its "
            "own gradients' overflows; train in BF16, which needs none"
        )
    return scale, overflow


def _tensor(number: Any, name: str) -> Tensor | None:
    """What a GradScaler has set; the sum of its flags is a plain 0 where no parameter has a gradient."""
    if number is None or isinstance(number, Tensor):
        return number
    if not isinstance(number, float) and not (isinstance(number, int) and abs(number) < 2**63):
        raise TypeError(f"torchdion.Dion: {name} must be a tensor of one element or a number, got {shown(number)}")
    return torch.as_tensor(number, device="cpu")
