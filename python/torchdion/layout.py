"""How one parameter is cut: by which axes, along which of its dimensions, and what of it is this rank's."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from torchdion import _C
from torchdion.dtensor import Cuts
from torchdion.table import algorithm_of, options_of
from torchdion.words import front


class Piece(NamedTuple):
    """Of a parameter, this rank's: how the whole lies, the shape here, and which dimensions the layout's axes cut."""

    layout: _C.Layout
    shape: tuple[int, ...]
    sides: dict[str, int]


def piece_index(chunks: Sequence[int], coordinates: Sequence[int]) -> int:
    """Which piece is a rank's of a dimension that is cut into chunks[0], each of these into chunks[1], and so on."""
    index = 0
    for count, coordinate in zip(chunks, coordinates, strict=True):
        index = index * count + coordinate
    return index


def piece_of(
    shape: tuple[int, ...],
    sides: dict[str, int],
    axes: dict[str, _C.Axis],
    replicas: _C.Axis,
    copies: _C.Axis,
    world_size: int,
) -> Piece:
    """Of a parameter of this shape whose dimensions ``sides`` are cut by ``axes`` in a job of so many ranks."""
    local = list(shape)
    for side, dim in sides.items():
        local[dim] = axes[side].piece(shape[dim])[1]
    ranks = replicas.size * math.prod(axis.size for axis in axes.values())
    layout = _C.Layout(
        **axes, replicas=replicas, copies=copies, sizes=list(shape), has_averaged_copies=world_size > ranks
    )
    return Piece(layout, tuple(local), sides)


def sides_of(cuts: Cuts, param: Tensor, group: dict[str, Any], name: str) -> dict[str, int]:
    """The dimension of the parameter that the axes rows, cols and batch of its layout cut."""
    if not algorithm_of(param, group).takes_matrices:
        if len(cuts) > 3:
            raise ValueError(f"{front()}: {name} must be cut on at most three dimensions, got {len(cuts)}")
        return dict(zip(("rows", "cols", "batch"), cuts, strict=False))
    return options_of(group).sides_of(list(param.shape), list(cuts), name)
