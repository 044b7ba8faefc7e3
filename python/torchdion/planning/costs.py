"""What a rank spends on parameters that are alike, in one step: memory, operations and traffic of each optimizer.

Elements of Dion come from ``_C.traffic``, the formula that the engine's counters are tested against. What they are on
the wire follows the engine: sums are a ring's, twice (size - 1) / size of the tensor, a gathering half of that, and
the sketch, Gram matrices and column norms are summed in FP64. Operations are those of Appendix H of arXiv 2504.05295:
products, triangular solves and small factorizations; what is linear in the number of entries counts as passes over
memory instead.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from torchdion import _C
from torchdion.layout import Place
from torchdion.mixed_precision import dtype_of
from torchdion.parameters import algorithm_of, form_of
from torchdion.state import shape_of_Q

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


@dataclass(frozen=True)
class Alike:
    """Parameters that one batch updates: of one group, shape, dtype and layout.

    Args:
        names: of the parameters.
        param: one of them.
        group: theirs, with every option.
        place: where this rank's pieces lie, without the replicas.
        replicas: the axis of the copies; absent where there are none.
        cutting: the axes that cut the matrices, the outermost first.
        dealt: by axis: matrices to orthonormalize that it has dealt out to its ranks before these.
    """

    names: list[str]
    param: Tensor
    group: dict[str, Any]
    place: Place
    replicas: _C.Axis
    cutting: tuple[_C.Axis, ...] = ()
    dealt: Mapping[str, int] = field(default_factory=dict)

    @property
    def numel(self) -> int:
        """Of this rank's pieces of all of them."""
        return len(self.names) * math.prod(self.place.shape)

    @property
    def matrix(self) -> tuple[int, int]:
        """m and n of each whole matrix."""
        *_, m, n = _C.matrix_sizes(list(self.param.shape), *form_of(self.group))
        return m, n

    @property
    def count(self) -> int:
        """Matrices of which this rank has a piece."""
        *stack, _, _ = _C.matrix_sizes(list(self.place.shape), *form_of(self.group))
        return len(self.names) * math.prod(stack)

    @property
    def whole_Q(self) -> tuple[int, ...]:
        return shape_of_Q(self.param, self.group)

    @property
    def rank(self) -> int:
        return self.whole_Q[-1]

    @property
    def piece_of_Q(self) -> tuple[int, ...]:
        """What cuts the side that Q shares with the parameter cuts Q's rows, what cuts the other side its columns."""
        *stack, rows, r = self.whole_Q
        of_rows, of_columns = self.oriented(self.place.layout)
        if not self.place.layout.batch.absent:
            stack[0] = self.place.shape[0]
        return (*stack, of_rows.piece(rows)[1], of_columns.piece(r)[1])

    def oriented(self, layout: _C.Layout) -> tuple[_C.Axis, _C.Axis]:
        return (layout.rows, layout.cols) if self.group["orientation"] == "right" else (layout.cols, layout.rows)

    def with_replicas(self) -> _C.Layout:
        """The layout under an explicit ``replicate_mesh``."""
        layout = self.place.layout
        return _C.Layout(
            rows=layout.rows, cols=layout.cols, batch=layout.batch, sizes=layout.sizes, replicas=self.replicas
        )

    def bytes_of(self, state: str) -> int:
        """Of one entry of a state, or of the parameter ("param") and its gradient."""
        return (self.param.dtype if state == "param" else dtype_of(state, self.param, self.group)).itemsize

    @property
    def computing(self) -> torch.dtype:
        """The dtype that products are accumulated, and factors sent, in."""
        dtypes = {self.param.dtype, dtype_of("momentum", self.param, self.group), dtype_of("Q", self.param, self.group)}
        return torch.float64 if torch.float64 in dtypes else torch.float32


def add_dense(alike: Alike, elements: dict[str, int], sent: dict[str, int]) -> None:
    """The averaging of gradients over the replicas, as DistributedDataParallel and HSDP do it during backward."""
    axis = alike.replicas
    if not axis.absent:
        elements[axis.name] = elements.get(axis.name, 0) + alike.numel
        sent[axis.name] = sent.get(axis.name, 0) + ring(2 * alike.numel * alike.bytes_of("param"), axis.size)


def dion(alike: Alike, compressed: bool) -> Cost:
    """Dion, whose replicas exchange factors in step(), or whose gradients are averaged before it."""
    layout = alike.with_replicas() if compressed else alike.place.layout
    m, n = alike.matrix
    elements, sent = _dion_traffic(alike, layout, m, n)
    if not compressed:
        add_dense(alike, elements, sent)
    momentum, weight, Q = alike.bytes_of("momentum"), alike.bytes_of("param"), alike.bytes_of("Q")
    return Cost(
        state_bytes=alike.numel * momentum + len(alike.names) * (math.prod(alike.piece_of_Q) * Q + STEP_BYTES),
        flops=_dion_flops_of_rank(alike, layout, m, n),
        # M: read and written by M + G and by the error feedback, read by two products; X: read and written
        memory_bytes=alike.numel * (6 * momentum + 3 * weight),
        elements=elements,
        bytes=sent,
    )


def _dion_traffic(alike: Alike, layout: _C.Layout, m: int, n: int) -> tuple[dict[str, int], dict[str, int]]:
    group, count, r = alike.group, alike.count, alike.rank
    by_side = _C.traffic(
        m,
        n,
        r,
        layout,
        orientation=_C.Orientation.__members__[group["orientation"]],
        orthonormalize=_C.Orthonormalize.__members__[group["orthonormalize"]],
        rcqr_oversample=group["rcqr_oversample"],
        dtype=alike.computing,
        count=count,
        dealt=alike.dealt.get(alike.oriented(layout)[0].name, 0),
    )
    is_right = group["orientation"] == "right"
    inner, reduced = ("cols", "rows") if is_right else ("rows", "cols")  # the sides that cut P and Q
    long_P, long_Q = (n, m) if is_right else (m, n)
    axes = {side: getattr(layout, side) for side in by_side}
    item, double = alike.computing.itemsize, torch.float64.itemsize
    Q = count * axes[reduced].piece(long_Q)[1] * r  # as many entries as R
    P = count * axes[inner].piece(long_P)[1] * r
    once_round = {  # bytes of tensors that go once round a ring, as a gathering does; a sum goes round twice
        inner: Q * item + 2 * (Q * item + (by_side[inner] - 2 * Q) * double),
        reduced: 2 * (P * item + (by_side[reduced] - P) * double),
        "replicas": 2 * by_side["replicas"] * item,
    }
    present = {side: axis for side, axis in axes.items() if not axis.absent}
    elements = _sum_by_axis([{axis.name: by_side[side]} for side, axis in present.items()])
    sent = _sum_by_axis([{axis.name: ring(once_round[side], axis.size)} for side, axis in present.items()])
    return elements, sent


def ring(size: int, ranks: int) -> int:
    """What each rank of a ring forwards of so many bytes that go round once."""
    return size * (ranks - 1) // ranks


def _dion_flops_of_rank(alike: Alike, layout: _C.Layout, m: int, n: int) -> int:
    """Of this rank's pieces, and of the largest share of the whole matrices to orthonormalize, which the axes that sum
    them deal out."""
    of_Q, of_P = alike.oriented(layout)
    long_P, long_Q = (n, m) if alike.group["orientation"] == "right" else (m, n)
    P, Q, r = of_P.piece(long_P)[1], of_Q.piece(long_Q)[1], alike.rank
    factored = alike.count
    if of_P.absent:
        exchanging = _C.compresses(*alike.matrix, alike.rank, layout)
        for axis in (of_Q, layout.replicas) if exchanging else (of_Q,):
            factored = largest_share(factored, axis)
    method, oversample = alike.group["orthonormalize"], alike.group["rcqr_oversample"]
    passes = 3 if alike.computing == torch.float64 else 2
    one = orthonormalize_flops(P, r, method, oversample=oversample, rows=long_P, passes=passes)
    return alike.count * 8 * P * Q * r + factored * one


def largest_share(count: int, axis: _C.Axis) -> int:
    """How many of so many whole matrices a rank of the axis gets at most, for whom the others wait."""
    return -(-count // axis.size)


def with_dealt(batches: Iterable[Alike]) -> list[Alike]:
    """The same in their order, each with what its axes have dealt out before it."""
    dealt: dict[str, int] = {}
    counted = []
    for alike in batches:
        counted.append(replace(alike, dealt=dict(dealt)))
        if algorithm_of(alike.param, alike.group) == "dion" and alike.param.numel() > 0:
            of_Q, of_P = alike.oriented(alike.place.layout)
            if of_P.absent and not of_Q.absent:
                dealt[of_Q.name] = dealt.get(of_Q.name, 0) + alike.count
    return counted


def orthonormalize_flops(
    m: int, r: int, method: str = "auto", *, oversample: float = 1.25, rows: int | None = None, passes: int = 2
) -> int:
    """To orthonormalize an m×r matrix P, or the m rows of it that a rank has of ``rows``.

    "rcqr": sketch, its QR, solve, Gram, Cholesky, solve: 6.5mr² + 13/6 r³ at an oversampling of 1.25 (Appendix H of the
    paper). "auto" and "cholesky_qr": ``passes`` of Gram, Cholesky, solve: 3mr² + r³/3 each. "qr": Householder's, with
    the forming of Q.
    """
    k = math.ceil(oversample * r)
    if method == "qr":
        return 2 * (2 * m * r**2 - 2 * r**3 // 3)
    one_pass = 3 * m * r**2 + r**3 // 3
    if method == "rcqr" and k < (rows or m):  # else a sketch saves nothing
        return 2 * k * m * r + (2 * k * r**2 - 2 * r**3 // 3) + m * r**2 + one_pass
    return passes * one_pass
