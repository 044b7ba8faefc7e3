"""What a rank spends on parameters in one step: memory, operations and traffic.

The engine plans it; of gradients that are averaged before the step, and of Muon as it is elsewhere run on shards, it is
computed here.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchdion import _C
from torchdion.layouts import Piece
from torchdion.mixed_precision import dtype_of
from torchdion.table import algorithm_of, options_of

STEP_BYTES = torch.float32.itemsize
"""Of the step count that each parameter's state has."""

BF16_BYTES = torch.bfloat16.itemsize
"""Of what Newton–Schulz iterations compute in, and what is sent for them (arXiv 2502.16982, Section 2.3)."""


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
    sums: Counter[str] = Counter()
    for count in counts:
        sums.update(count)
    return dict(sums)


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
    members: dict[tuple[int, str, bool], list[int]] = {}
    for index, planned in enumerate(parameters):
        own = algorithm or algorithm_of(planned.param, planned.group).name
        is_owned = has_owners and replicas is not None and not replicas.absent and planned.piece.layout.is_local
        members.setdefault((id(planned.group), own, is_owned), []).append(index)
    groups = [
        (
            options_of(parameters[indices[0]].group | {"algorithm": own, "owners": "shard" if is_owned else "all"}),
            [_described(parameters[index], replicas) for index in indices],
        )
        for (_, own, is_owned), indices in members.items()
    ]
    added = list(members.values())
    # What has no elements is in no batch.
    found = [EngineCost(Cost(state_bytes=STEP_BYTES), False)] * len(parameters)
    for each in _C.costs(groups):
        index = added[each.pop("group")][each.pop("parameter")]
        decoupled = each.pop("decoupled")
        each["state_bytes"] += STEP_BYTES
        found[index] = EngineCost(Cost(**each), decoupled)
    return found


def _described(planned: Planned, replicas: _C.Axis | None) -> tuple[list[int], torch.dtype, list[int], _C.Layout]:
    layout = planned.piece.layout
    lies = laid_out(layout, replicas or _C.Axis(), layout.copies)
    return list(planned.param.shape), planned.param.dtype, list(planned.piece.shape), lies


def laid_out(layout: _C.Layout, replicas: _C.Axis, copies: _C.Axis) -> _C.Layout:
    """The same cuts with other replicas and copies."""
    return _C.Layout(
        rows=layout.rows, cols=layout.cols, batch=layout.batch, sizes=layout.sizes, replicas=replicas, copies=copies
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
        *_, m, n = options_of(self.first.group).matrix_sizes(list(self.first.param.shape))
        return m, n

    @property
    def count(self) -> int:
        """Matrices of which this rank has a piece."""
        *stack, _, _ = options_of(self.first.group).matrix_sizes(list(self.first.piece.shape))
        return len(self.members) * math.prod(stack)

    def bytes_of(self, state: str) -> int:
        """Of one entry of a state, or of the parameter ("param") and its gradient."""
        param, group = self.first.param, self.first.group
        return (param.dtype if state == "param" else dtype_of(state, param, group)).itemsize


def averaged(alike: Alike, cost: Cost) -> Cost:
    """The cost of a step, and of what DistributedDataParallel and HSDP do before it: averaging the gradients."""
    axis = alike.replicas
    if axis.absent:
        return cost
    sent = ring(2 * alike.numel * alike.bytes_of("param"), axis.size)
    return total([cost, Cost(elements={axis.name: alike.numel}, bytes={axis.name: sent})])


def muon_gathering(alike: Alike) -> Cost:
    """Every shard gathers the whole momentum in BF16 and orthonormalizes it, as all others do (arXiv 2502.16982).

    Five Newton–Schulz iterations are 20mn² + 10n³ operations for n ≤ m (Appendix H of arXiv 2504.05295).
    """
    elements: dict[str, int] = {}
    layout = alike.first.piece.layout
    m, n = alike.matrix
    sizes = {"rows": layout.rows.piece(m)[1], "cols": layout.cols.piece(n)[1]}
    for axis in alike.cutting:  # along the outermost, and slowest, while the pieces are small
        side, whole = ("rows", m) if axis.name == layout.rows.name else ("cols", n)
        sizes[side] = whole
        elements[axis.name] = alike.count * sizes["rows"] * sizes["cols"]
    item = alike.bytes_of("momentum")
    long, short = max(m, n), min(m, n)
    cost = Cost(
        state_bytes=alike.numel * item + len(alike.names) * STEP_BYTES,
        flops=alike.count * (20 * long * short**2 + 10 * short**3),
        memory_bytes=alike.numel * (2 * item + 3 * alike.bytes_of("param")),
        elements=elements,
        bytes={axis.name: ring(elements[axis.name] * BF16_BYTES, axis.size) for axis in alike.cutting},
    )
    return averaged(alike, cost)


def ring(size: int, ranks: int) -> int:
    """What each rank of a ring forwards of so many bytes that go round once."""
    return size * (ranks - 1) // ranks
