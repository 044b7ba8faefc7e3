"""Where plain parameters would lie on a mesh that only a description gives: the rules of FSDP2 and of Megatron-LM."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor

from torchdion import _C
from torchdion.axes import piece_index
from torchdion.layouts import Piece, piece_of, sides_of
from torchdion.planning.grid import Grid
from torchdion.planning.table import pattern
from torchdion.words import shown

COLWISE, ROWWISE, WHOLE = "colwise", "rowwise", "replicate"
FS_CUTS = ("rows", "other")

_COLWISE = "query key value q_proj k_proj v_proj qkv_proj wq wk wv wqkv up gate_proj up_proj w1 w3 fc1 c_fc c_attn"
_ROWWISE = "output o_proj out_proj wo down down_proj w2 fc2 c_proj"
MEGATRON = {**dict.fromkeys(_COLWISE.split(), COLWISE), **dict.fromkeys(_ROWWISE.split(), ROWWISE)}
"""How tensor parallelism cuts a Linear, by the last part of its name."""


class DescribedLayouts:
    """Lays out plain parameters.

    Args:
        grid: the mesh, with sides among dp, fs and tp.
        fs_cuts: "rows": fs cuts dimension 0 of every parameter, as ``fully_shard`` does; "other": of a matrix that tp
            cuts along dimension 0 it cuts dimension 1, by a ``shard_placement_fn``, as the paper lays them out.
        tp_plan: module name or pattern → "colwise", "rowwise" or "replicate", or torch's ParallelStyles. None:
            Megatron-LM's rule by the names in MEGATRON, embedding and head along the vocabulary.
    """

    def __init__(self, grid: Grid, fs_cuts: str, tp_plan: Mapping[str, Any] | None) -> None:
        if fs_cuts not in FS_CUTS:
            raise ValueError(f"torchdion.plan: fs_cuts must be one of {', '.join(FS_CUTS)}, got {shown(fs_cuts)}")
        self.grid = grid
        self.fs_cuts = fs_cuts
        self.tp_plan = None if tp_plan is None else {name: _style(style) for name, style in tp_plan.items()}
        self.whole_on_tp: list[str] = []
        """Matrices that no rule lets tp cut."""
        self._axes: dict[tuple[str, ...], _C.Axis] = {}
        self._pieces: dict[tuple[Any, ...], Piece] = {}

    def of(self, param: Tensor, group: dict[str, Any], name: str) -> Piece:
        cuts = self._cuts(param, group, name)
        key = (param.shape, tuple(cuts.items()))
        if key not in self._pieces:
            # sides_of() takes mesh dimensions by number
            sides = sides_of(dict.fromkeys(sorted(cuts), ()), param, group, f"parameter {name!r}")
            axes = {side: self._axis(cuts[dim]) for side, dim in sides.items()}
            self._pieces[key] = piece_of(tuple(param.shape), sides, axes, _C.Axis(), _C.Axis(), self.grid.size)
        return self._pieces[key]

    def rule(self) -> str:
        """How parameters were laid out, in a sentence."""
        rule = "Parameters are plain tensors: "
        if self.grid.sizes.get("fs", 1) > 1:
            rule += "fs cuts dimension 0 of each" + (", or 1 where tp cuts 0; " if self.fs_cuts == "other" else "; ")
        if self.grid.sizes.get("tp", 1) > 1:
            rule += "tp cuts matrices by " + ("Megatron's rule" if self.tp_plan is None else "tp_plan")
            rule += f", but not {pattern(self.whole_on_tp)}; " if self.whole_on_tp else "; "
        return rule + "dp holds replicas."

    def _cuts(self, param: Tensor, group: dict[str, Any], name: str) -> dict[int, tuple[str, ...]]:
        """By dimension: the sides that cut it, the outermost cut first. FSDP2 cuts what tensor parallelism left."""
        cuts: dict[int, tuple[str, ...]] = {}
        tp_dim = self._tp_dim(param, group, name) if self.grid.sizes.get("tp", 1) > 1 else None
        if tp_dim is not None:
            cuts[tp_dim] = ("tp",)
        if self.grid.sizes.get("fs", 1) > 1 and param.dim() > 0:
            fs_dim = 1 if self.fs_cuts == "other" and tp_dim == 0 and param.dim() > 1 else 0
            cuts[fs_dim] = (*cuts.get(fs_dim, ()), "fs")
        return cuts

    def _tp_dim(self, param: Tensor, group: dict[str, Any], name: str) -> int | None:
        module, _, _ = name.rpartition(".")
        kind = group.get("kind", "matrix")
        style = self._style_of(module, kind)
        is_vector = param.dim() < 2
        if style is None and not is_vector:
            self.whole_on_tp.append(name)
        if style in (None, WHOLE) or (is_vector and style == ROWWISE) or param.dim() == 0:
            return None
        is_transposed = group["fan_in_first"] or kind == "embedding"  # of an Embedding, as torch's styles see it
        cuts_first = is_vector or (style == COLWISE) != is_transposed
        return (group["batch_dims"] or 0) + (0 if cuts_first else 1)

    def _style_of(self, module: str, kind: str) -> str | None:
        if self.tp_plan is not None:
            styles = (style for name, style in self.tp_plan.items() if _matches(module, name))
            return next(styles, None)
        along_vocabulary = {"embedding": ROWWISE, "head": COLWISE}
        return along_vocabulary.get(kind, MEGATRON.get(module.rpartition(".")[2]))

    def _axis(self, sides: tuple[str, ...]) -> _C.Axis:
        """The axis whose pieces nest in the order of ``sides``; its ranks stand in the order of the grid."""
        if sides not in self._axes:
            ordered = self.grid.ordered(sides)
            chunks = [self.grid.sizes[side] for side in sides]
            pieces = [piece_index(chunks, [along[side] for side in sides]) for along in self.grid.coordinates(ordered)]
            self._axes[sides] = self.grid.axis(ordered, chunks=chunks, pieces=pieces)
        return self._axes[sides]


def _matches(module: str, pattern: str) -> bool:
    return fnmatchcase(module, pattern) or fnmatchcase(module, f"*.{pattern}")


def _style(given: Any) -> str:
    """A style's word, also for torch's own objects (ColwiseParallel(), SequenceParallel()) and transformers' names."""
    word = (given if isinstance(given, str) else type(given).__name__).lower()
    for style in (COLWISE, ROWWISE):
        if style in word:
            return style
    if word == WHOLE or word.startswith(("sequence", "prepare")):
        return WHOLE
    raise ValueError(
        f"torchdion.plan: the styles of tp_plan must be 'colwise', 'rowwise' or 'replicate', got {shown(given)}"
    )
