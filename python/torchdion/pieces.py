"""Whole states of parameters, and the pieces that this rank has of them."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from torchdion import _C
from torchdion.dtensor import is_dtensor, state_like
from torchdion.layout import Piece
from torchdion.state import placements_of_state
from torchdion.table import State, algorithm_of, options_of

Sides = dict[str, int]
"""The dimension of a tensor that each axis of a layout cuts: "rows", "cols", "batch"."""


def piece_of_state(whole: Tensor, key: str, param: Tensor, group: dict[str, Any], piece: Piece) -> Tensor:
    """What this rank holds of a whole state: a DTensor that lies as the parameter does, or the state itself."""
    if not is_dtensor(param):
        return whole
    state, sides = _sides_of(key, whole.shape, param, group, piece)
    placements = placements_of_state(state, whole.shape, param, group)
    return state_like(_cut(whole, piece.layout, sides), param, whole.shape, placements)


def _sides_of(
    key: str, sizes: Iterable[int], param: Tensor, group: dict[str, Any], piece: Piece
) -> tuple[State, Sides]:
    algorithm = algorithm_of(param, group)
    state = next(declared for declared in algorithm.states if declared.name == key)
    if state.shape == "like_parameter":
        return state, piece.sides
    return state, _C.cuts_of_state(algorithm.name, key, list(sizes), list(param.shape), options_of(group))


def _cut(whole: Tensor, layout: _C.Layout, sides: Sides) -> Tensor:
    for side, dim in sides.items():
        begin, size = getattr(layout, side).piece(whole.shape[dim])
        whole = whole.narrow(dim, begin, size)
    return whole.contiguous()
