"""The rows of a plan: parameters that are alike, where they lie, and what each optimizer spends on them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from torchdion import _C
from torchdion.dtensor import cuts_of, is_dtensor
from torchdion.layout import Layouts, check_orthonormalize
from torchdion.parameters import algorithm_of
from torchdion.planning import rivals
from torchdion.planning.costs import Alike, Cost, dion, with_dealt
from torchdion.planning.described import DescribedLayouts
from torchdion.planning.grid import Grid

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

OPTIMIZERS = {
    "dion_compressed": "replicas exchange P and R where that is less than gradients (replicate_mesh)",
    "dion_dense": "gradients are averaged over replicas during backward",
    "muon_gathering": "every shard gathers every matrix and repeats Newton–Schulz on it; gradients are averaged",
    "muon_handed_out": "each rank gets some whole matrices and sends their updates back",
    "adamw": "gradients are averaged",
}
"""What is compared, and what it does."""


@dataclass(frozen=True)
class Row:
    """Parameters that are alike.

    Args:
        names: of the parameters.
        kind: what :func:`torchdion.param_groups` takes them for: "matrix", "embedding", "head", "vector", …
        algorithm: "dion", "lion" or "adamw".
        orientation, rank: of Dion's matrices, else None.
        shape, piece: of the whole parameter, and of this rank's.
        Q, piece_of_Q: the same of Dion's right factor.
        cuts: the axis that cuts the rows, the columns, the stack; without those that nothing cuts.
        compresses: whether replicas exchange P and R rather than gradients; None where there is nothing to exchange.
        costs: of all of them together, by optimizer.
    """

    names: list[str]
    kind: str
    algorithm: str
    orientation: str | None
    rank: int | None
    shape: tuple[int, ...]
    piece: tuple[int, ...]
    Q: tuple[int, ...] | None
    piece_of_Q: tuple[int, ...] | None
    cuts: dict[str, str]
    compresses: bool | None
    costs: dict[str, Cost]


def parameters_of(groups: list[dict[str, Any]]) -> list[tuple[str, Tensor, dict[str, Any]]]:
    """With their names and groups."""
    return [(name, param, group) for group in groups for name, param in group["params"]]


def replicas_of(groups: list[dict[str, Any]], grid: Grid, given: Iterable[str] | None) -> _C.Axis:
    """The axis of the copies: of plain parameters dp, of DTensors the mesh dimensions that cut none.

    Raises:
        ValueError: a name that the mesh lacks, or of a dimension that cuts a parameter.
    """
    distributed = [param for _, param, _ in parameters_of(groups) if is_dtensor(param)]
    cutting = _cutting_sides(distributed, grid) if distributed else {"fs", "tp"}
    names = grid.sizes.keys() - cutting if given is None else {given} if isinstance(given, str) else set(given)
    for name in names:
        if name in cutting or name not in grid.sizes:
            raise ValueError(
                f"torchdion.plan: replicas must be dimensions of mesh that cut no parameter, among "
                f"{', '.join(name for name in grid.sizes if name not in cutting) or 'none'}, got {name!r}"
            )
    return grid.axis(tuple(name for name in grid.ordered(names) if grid.sizes[name] > 1))


def _cutting_sides(params: "list[DTensor]", grid: Grid) -> set[str]:
    sides: set[str] = set()
    for param in params:
        names = param.device_mesh.mesh_dim_names
        if names is None:
            raise ValueError(f"torchdion.plan: meshes of parameters must have mesh_dim_names, got {param.device_mesh}")
        for dims in cuts_of(param, "a parameter").values():
            sides.update(*(grid.sides_of_axis(names[dim]) for dim in dims))
    return sides


def batches_of(
    groups: list[dict[str, Any]], grid: Grid, layouts: Layouts | DescribedLayouts, replicas: _C.Axis
) -> list[Alike]:
    """The parameters by what the engine batches them by, in the order of the first of each."""
    batches: dict[tuple[Any, ...], Alike] = {}
    for name, param, group in parameters_of(groups):
        place = layouts.of(param, group, f"parameter {name!r}" if isinstance(layouts, Layouts) else name)
        axes = (place.layout.rows.name, place.layout.cols.name, place.layout.batch.name)
        key = (id(group), param.shape, param.dtype, place.shape, axes)
        if key not in batches:
            cutting = _cutting(place.layout, grid)
            batches[key] = Alike([], param, group, place, replicas, cutting)
        batches[key].names.append(name)
    return with_dealt(batches.values())


def _cutting(layout: _C.Layout, grid: Grid) -> tuple[_C.Axis, ...]:
    order = list(grid.sizes)
    axes = [axis for axis in (layout.rows, layout.cols) if not axis.absent]
    return tuple(sorted(axes, key=lambda axis: order.index(grid.sides_of_axis(axis.name)[0])))


def row_of(batch: Alike, grid: Grid) -> Row:
    group, layout = batch.group, batch.place.layout
    algorithm = algorithm_of(batch.param, group)
    is_matrix = algorithm == "dion" and batch.param.numel() > 0
    if is_matrix:
        check_orthonormalize(layout, group["orientation"], group, f"parameter {batch.names[0]!r}")
    axes = {"rows": layout.rows, "columns": layout.cols, "stack": layout.batch}
    compresses = None
    if is_matrix and not batch.replicas.absent:
        compresses = _C.compresses(*batch.matrix, batch.rank, layout)
    return Row(
        names=batch.names,
        kind=group.get("kind", "matrix" if is_matrix else "vector"),
        algorithm=algorithm,
        orientation=group["orientation"] if is_matrix else None,
        rank=batch.rank if is_matrix else None,
        shape=tuple(batch.param.shape),
        piece=tuple(batch.place.shape),
        Q=batch.whole_Q if is_matrix else None,
        piece_of_Q=batch.piece_of_Q if is_matrix else None,
        cuts={side: axis.name for side, axis in axes.items() if not axis.absent},
        compresses=compresses,
        costs=_costs(batch, grid) if is_matrix else _scalar_costs(batch, algorithm),
    )


def _costs(batch: Alike, grid: Grid) -> dict[str, Cost]:
    sides = [side for axis in batch.cutting for side in grid.sides_of_axis(axis.name)]
    return {
        "dion_compressed": dion(batch, compressed=True),
        "dion_dense": dion(batch, compressed=False),
        "muon_gathering": rivals.muon_gathering(batch),
        "muon_handed_out": rivals.muon_handed_out(batch, "_".join(grid.ordered(sides))),
        "adamw": rivals.adamw(batch),
    }


def _scalar_costs(batch: Alike, algorithm: str) -> dict[str, Cost]:
    """What is no matrix gets the same rule from Dion and Muon."""
    scalar = rivals.adamw(batch) if algorithm == "adamw" else rivals.lion(batch)
    return {**dict.fromkeys(OPTIMIZERS, scalar), "adamw": rivals.adamw(batch)}
