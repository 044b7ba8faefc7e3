"""What a rank spends on parameters in one step, as the engine plans it: memory, operations and traffic."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchdion import _C
from torchdion.layout import Piece
from torchdion.mixed_precision import dtype_of
from torchdion.owners import Part
from torchdion.table import ALGORITHMS, Algorithm, algorithm_of, options_of

STEP_BYTES = torch.float32.itemsize
"""Of the step count that each parameter's state has."""


@dataclass(frozen=True)
class Cost:
    """Of one rank, in one step.

    Args:
        state_bytes: of the optimizer's state, which stay.
        flops: of products and factorizations.
        memory_bytes: that passes over whole matrices read and write.
        elements: by axis: of the full tensors of this rank's collectives, as the paper's Table 2 counts: a
            reduce-scatter and the all-gather that completes it count once.
        bytes: by axis: that this rank sends.
    """

    state_bytes: int = 0
    flops: int = 0
    memory_bytes: int = 0
    elements: dict[str, int] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)


def total(costs: Iterable[Cost]) -> Cost:
    """The sum of all, with the axes in the order of their first appearance."""
    every = list(costs)
    return Cost(
        *(sum(getattr(cost, name) for cost in every) for name in ("state_bytes", "flops", "memory_bytes")),
        *(_sum_by_axis([getattr(cost, name) for cost in every]) for name in ("elements", "bytes")),
    )


def _sum_by_axis(counts: list[dict[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for count in counts:
        for axis, number in count.items():
            sums[axis] = sums.get(axis, 0) + number
    return sums


class Planned(NamedTuple):
    """A parameter of a plan.

    Args:
        group: its own, with every option.
        piece: where this rank's piece lies, without the replicas.
    """

    name: str
    param: Tensor
    group: dict[str, Any]
    piece: Piece


class EngineCost(NamedTuple):
    """What the engine says of a parameter."""

    cost: Cost
    decoupled: bool  # its replicas have states of their own


def engine_costs(
    parameters: list[Planned],
    algorithm: str | None = None,
    replicas: _C.Axis | None = None,
    has_owners: bool = False,
) -> list[EngineCost]:
    """Of each parameter under its own algorithm or this one, by the plan of a step on Meta tensors.

    Args:
        replicas: over which the optimizer averages.
        has_owners: the replicas share out the states of what is whole on each of them.
    """
    groups = _C.Groups()
    added: list[list[int]] = []  # of each group of the engine its parameters
    members: dict[tuple[int, str, bool], list[int]] = {}
    for index, planned in enumerate(parameters):
        own = algorithm or algorithm_of(planned.param, planned.group).name
        is_cut = has_owners and not planned.piece.layout.is_local
        members.setdefault((id(planned.group), own, is_cut), []).append(index)
    parts = _parts(parameters, members, replicas) if has_owners and replicas is not None else {}
    for (_, own, _), indices in members.items():
        own_parts = [parts[index] for index in indices if index in parts]
        _add(groups, ALGORITHMS[own], [parameters[index] for index in indices], replicas, own_parts)
        added.append(indices)
    # What has no elements is in no batch.
    found = [EngineCost(Cost(state_bytes=STEP_BYTES), False)] * len(parameters)
    for each in _C.costs(groups):
        index = added[each.pop("group")][each.pop("parameter")]
        decoupled = each.pop("decoupled")
        each["state_bytes"] += STEP_BYTES
        found[index] = EngineCost(Cost(**each), decoupled)
    return found


def _parts(
    parameters: list[Planned], members: dict[tuple[int, str, bool], list[int]], replicas: _C.Axis
) -> dict[int, Part]:
    """Of the parameters that are whole on every rank, by their places: what this rank owns."""
    if replicas.absent:
        return {}
    whole = [(own, indices) for (_, own, is_cut), indices in members.items() if not is_cut]
    options = [
        options_of(parameters[indices[0]].group | {"algorithm": own, "owners": "shard"}) for own, indices in whole
    ]
    sizes = [
        (group, list(parameters[index].param.shape)) for group, (_, indices) in enumerate(whole) for index in indices
    ]
    shares = iter(_C.shares_of(sizes, options, replicas))
    return {index: Part(replicas, next(shares)) for _, indices in whole for index in indices}


def _add(
    groups: _C.Groups,
    algorithm: Algorithm,
    members: list[Planned],
    replicas: _C.Axis | None,
    parts: list[Part],
) -> None:
    """
    Args:
        parts: what this rank owns of each; empty: all of their states.
    """
    options = options_of(members[0].group)
    pieces = [torch.empty(one.piece.shape, dtype=one.param.dtype, device="meta") for one in members]
    layouts = [_with_replicas(one.piece.layout, replicas) for one in members]
    states: list[list[Tensor]] = []
    factors: list[list[list[int]]] = []
    for state in algorithm.states:
        named = algorithm.name, state.name
        states.append([])
        for index, (one, layout) in enumerate(zip(members, layouts, strict=True)):
            sizes = _C.piece_of_state_sizes(*named, list(one.param.shape), list(one.piece.shape), options, layout)
            if parts:
                sizes = parts[index].sizes(sizes, one.param)
            states[-1].append(torch.empty(sizes, dtype=dtype_of(state.name, one.param, one.group), device="meta"))
        if state in algorithm.factors:
            factors.append([_C.whole_state_sizes(*named, list(one.param.shape), options) for one in members])
    steps = [torch.empty((), device="meta")] * len(members) if parts else []
    groups.add(
        algorithm.name, options, pieces, pieces, states, steps, layouts, factors, [part.shares for part in parts]
    )


def _with_replicas(layout: _C.Layout, replicas: _C.Axis | None) -> _C.Layout:
    return _C.Layout(
        rows=layout.rows,
        cols=layout.cols,
        replicas=_C.Axis() if replicas is None else replicas,
        copies=layout.copies,
        batch=layout.batch,
        sizes=layout.sizes,
    )


@dataclass(frozen=True)
class Alike:
    """Parameters of one group, shape, dtype and layout.

    Args:
        members: all of them.
        replicas: the axis of the copies; absent where there are none.
        cutting: the axes that cut the matrices, the outermost first.
    """

    members: list[Planned]
    replicas: _C.Axis
    cutting: tuple[_C.Axis, ...] = ()

    @property
    def first(self) -> Planned:
        return self.members[0]

    @property
    def names(self) -> list[str]:
        return [one.name for one in self.members]

    @property
    def numel(self) -> int:
        """Of this rank's pieces of all of them."""
        return len(self.members) * math.prod(self.first.piece.shape)

    @property
    def matrix(self) -> tuple[int, int]:
        """m and n of each whole matrix."""
        *_, m, n = _C.matrix_sizes(list(self.first.param.shape), options_of(self.first.group))
        return m, n

    @property
    def count(self) -> int:
        """Matrices of which this rank has a piece."""
        *stack, _, _ = _C.matrix_sizes(list(self.first.piece.shape), options_of(self.first.group))
        return len(self.members) * math.prod(stack)

    def bytes_of(self, state: str) -> int:
        """Of one entry of a state, or of the parameter ("param") and its gradient."""
        param, group = self.first.param, self.first.group
        return (param.dtype if state == "param" else dtype_of(state, param, group)).itemsize


def add_dense(alike: Alike, elements: dict[str, int], sent: dict[str, int]) -> None:
    """The averaging of gradients over the replicas, as DistributedDataParallel and HSDP do it during backward."""
    axis = alike.replicas
    if not axis.absent:
        elements[axis.name] = elements.get(axis.name, 0) + alike.numel
        sent[axis.name] = sent.get(axis.name, 0) + ring(2 * alike.numel * alike.bytes_of("param"), axis.size)


def averaged(alike: Alike, cost: Cost) -> Cost:
    """The cost of a step, and that averaging before it."""
    elements, sent = dict(cost.elements), dict(cost.bytes)
    add_dense(alike, elements, sent)
    return Cost(cost.state_bytes, cost.flops, cost.memory_bytes, elements, sent)


def ring(size: int, ranks: int) -> int:
    """What each rank of a ring forwards of so many bytes that go round once."""
    return size * (ranks - 1) // ranks
