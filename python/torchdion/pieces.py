"""Whole states of parameters, and the pieces that this rank has of them."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from torchdion import _C
from torchdion.dtensor import is_dtensor, local_part, placements_of_Q, state_like
from torchdion.layout import Place
from torchdion.state import orientation_of

Sides = dict[str, int]
"""The dimension of a tensor that each axis of a layout cuts: "rows", "cols", "batch"."""


def piece_of_state(whole: Tensor, key: str, param: Tensor, group: dict[str, Any], place: Place) -> Tensor:
    """What this rank holds of a whole state: a DTensor that lies as the parameter does, or the state itself."""
    if not is_dtensor(param):
        return whole
    if key != "Q":
        return state_like(_cut(whole, place.layout, place.sides), param, whole.shape)
    orientation = orientation_of(whole, param, group)
    placements = placements_of_Q(param, group, orientation)
    return state_like(_cut(whole, place.layout, _sides_of_Q(orientation)), param, whole.shape, placements)


def whole_Q(Q: Tensor, param: Tensor, group: dict[str, Any], place: Place) -> Tensor:
    """Of the pieces of all ranks, which must all call this."""
    if not is_dtensor(param):
        return Q
    return _gathered(local_part(Q), Q.shape, place.layout, _sides_of_Q(orientation_of(Q, param, group)))


def _sides_of_Q(orientation: str) -> Sides:
    """What cuts the side that Q shares with the parameter cuts Q's rows."""
    rows, columns = ("rows", "cols") if orientation == "right" else ("cols", "rows")
    return {"batch": 0, rows: -2, columns: -1}


def _cut(whole: Tensor, layout: _C.Layout, sides: Sides) -> Tensor:
    for side, dim in sides.items():
        begin, size = getattr(layout, side).piece(whole.shape[dim])
        whole = whole.narrow(dim, begin, size)
    return whole.contiguous()


def _gathered(piece: Tensor, shape: Iterable[int], layout: _C.Layout, sides: Sides) -> Tensor:
    lengths = list(shape)
    for side, dim in sides.items():
        piece = _C.gather_pieces(piece, dim, lengths[dim], getattr(layout, side))
    return piece
