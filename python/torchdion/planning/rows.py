"""The rows of a plan: parameters that are alike, where they lie, and what each optimizer spends on them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from torchdion import _C
from torchdion.dtensor import cuts_of, is_dtensor
from torchdion.layouts import Layouts
from torchdion.planning.costs import (
    Alike,
    Cost,
    EngineCost,
    Planned,
    averaged,
    engine_costs,
    laid_out,
    muon_gathering,
    total,
)
from torchdion.planning.described import DescribedLayouts
from torchdion.planning.grid import Grid
from torchdion.planning.optimizers import OF_ENTRIES, OF_MATRICES, WITH_OWNERS
from torchdion.table import ALGORITHMS, OPTIONS, algorithm_of, options_of

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class Row:
    """Parameters that are alike.

    Args:
        names: of the parameters.
        kind: what :func:`torchdion.param_groups` takes them for: "matrix", "embedding", "head", "vector", …
        algorithm: "dion", "lion" or "adamw"; another of groups that name it, whose costs are under "dion_*" then.
        orientation, rank: of Dion's matrices, else None.
        shape, piece: of the whole parameter, and of this rank's.
        Q, piece_of_Q: the same of Dion's right factor.
        cuts: the axis that cuts the rows, the columns, the stack; without those that nothing cuts.
        compresses: whether replicas exchange P and R rather than gradients; None where there is nothing to exchange.
        costs: of all of them together, by optimizer; without those of whole parameters where the mesh cuts any.
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


def alike_of(parameters: list[Planned], grid: Grid, replicas: _C.Axis) -> list[Alike]:
    """Those that are alike, in the order of the first of each."""
    found: dict[tuple[Any, ...], Alike] = {}
    for planned in parameters:
        _, param, group, piece = planned
        axes = (piece.layout.rows.name, piece.layout.cols.name, piece.layout.batch.name)
        key = (id(group), param.shape, param.dtype, piece.shape, axes)
        if key not in found:
            found[key] = Alike([], replicas, _cutting(piece.layout, grid))
        found[key].members.append(planned)
    return list(found.values())


def planned_parameters(groups: list[dict[str, Any]], layouts: Layouts | DescribedLayouts) -> list[Planned]:
    named = isinstance(layouts, Layouts)
    return [
        Planned(name, param, group, layouts.of(param, group, f"parameter {name!r}" if named else name))
        for name, param, group in parameters_of(groups)
    ]


def _cutting(layout: _C.Layout, grid: Grid) -> tuple[_C.Axis, ...]:
    order = list(grid.sizes)
    axes = [axis for axis in (layout.rows, layout.cols) if not axis.absent]
    return tuple(sorted(axes, key=lambda axis: order.index(grid.sides_of_axis(axis.name)[0])))


def under_muon(
    parameters: list[Planned], layouts: Layouts | DescribedLayouts, grid: Grid, replicas: _C.Axis
) -> list[Planned]:
    """The matrices, with the copies that share Muon's work beside the replicas: those of DTensors, else of dp."""
    averaged = () if replicas.absent else grid.sides_of_axis(replicas.name)
    axes: dict[tuple[str, ...], _C.Axis] = {}  # one for all parameters on its line
    planned = []
    for one in parameters:
        if not algorithm_of(one.param, one.group).takes_matrices:
            continue
        piece = one.piece
        if isinstance(layouts, Layouts):
            piece = layouts.of(one.param, one.group | {"algorithm": "muon"}, one.name)
            sides = () if piece.layout.copies.absent else grid.sides_of_axis(piece.layout.copies.name)
        else:
            sides = grid.ordered({"dp"})
        if not isinstance(layouts, Layouts) or set(sides) & set(averaged):
            # torch averages over what the plan takes for replicas
            others = tuple(side for side in sides if side not in averaged)
            copies = axes.setdefault(others, grid.axis(others))
            piece = piece._replace(layout=laid_out(piece.layout, _C.Axis(), copies))
        planned.append(one._replace(piece=piece))
    return planned


def rows_of(parameters: list[Planned], matrices: list[Planned], grid: Grid, replicas: _C.Axis) -> list[Row]:
    """Of parameters that are alike, with what each optimizer spends on them.

    Args:
        matrices: see :func:`under_muon`.
    """
    by_name = {
        "compressed": _by_name(parameters, replicas=replicas),
        "own": _by_name(parameters),
        **{algorithm: _by_name(parameters, algorithm) for algorithm in OF_ENTRIES},
    }
    of_matrices = [one for one in parameters if algorithm_of(one.param, one.group).takes_matrices]
    for algorithm in OF_MATRICES:
        members = matrices if ALGORITHMS[algorithm].shares_among_copies else of_matrices
        by_name[algorithm] = {**by_name["compressed"], **_by_name(members, algorithm, replicas)}
    layouts = [one.piece.layout for one in parameters]
    if all(layout.rows.absent and layout.cols.absent and layout.batch.absent for layout in layouts):
        others = [one for one in parameters if not algorithm_of(one.param, one.group).takes_matrices]
        for name, algorithm in WITH_OWNERS.items():
            members, rest = (of_matrices, others) if ALGORITHMS[algorithm].takes_matrices else (parameters, [])
            by_name[name] = {
                **_by_name(rest, None, replicas, has_owners=True),
                **_by_name(members, algorithm, replicas, has_owners=True),
            }
    return [_row_of(alike, by_name) for alike in alike_of(parameters, grid, replicas)]


def _by_name(
    parameters: list[Planned],
    algorithm: str | None = None,
    replicas: _C.Axis | None = None,
    has_owners: bool = False,
) -> dict[str, EngineCost]:
    names = (one.name for one in parameters)
    return dict(zip(names, engine_costs(parameters, algorithm, replicas, has_owners), strict=True))


def _row_of(alike: Alike, costs: dict[str, dict[str, EngineCost]]) -> Row:
    _, param, group, piece = alike.first
    algorithm, layout = algorithm_of(param, group), piece.layout
    is_matrix = algorithm.takes_matrices and param.numel() > 0
    whole_Q = piece_of_Q = None
    if is_matrix and algorithm.factors:
        options, sizes, factor = options_of(group), list(param.shape), algorithm.factors[0].name
        whole_Q = tuple(options.piece_of_state_sizes(sizes, sizes, _C.Layout())[factor])
        piece_of_Q = tuple(options.piece_of_state_sizes(sizes, list(piece.shape), layout)[factor])
        options.check_factors(sizes, layout, f"parameter {alike.names[0]!r}")
    axes = {"rows": layout.rows, "columns": layout.cols, "stack": layout.batch}
    compresses = costs["compressed"][alike.names[0]].decoupled if is_matrix and not alike.replicas.absent else None
    has_residual = algorithm.name in OPTIONS["residual"]["algorithms"] and group["residual"] is not None
    is_refused = bool(compresses) and has_residual  # replicas would part
    return Row(
        names=alike.names,
        kind=group.get("kind", "matrix" if is_matrix else "vector"),
        algorithm=algorithm.name,
        orientation=group["orientation"] if whole_Q else None,
        rank=whole_Q[-1] if whole_Q else None,
        shape=tuple(param.shape),
        piece=tuple(piece.shape),
        Q=whole_Q,
        piece_of_Q=piece_of_Q,
        cuts={side: axis.name for side, axis in axes.items() if not axis.absent},
        compresses=compresses and not is_refused,
        costs=_costs(alike, costs, is_matrix, is_refused),
    )


def _costs(alike: Alike, costs: dict[str, dict[str, EngineCost]], is_matrix: bool, is_refused: bool) -> dict[str, Cost]:
    found = {kind: total(of_kind[name].cost for name in alike.names) for kind, of_kind in costs.items()}
    dense = averaged(alike, found["own"])
    return {
        **({} if is_refused else {"dion_compressed": found["compressed"]}),
        "dion_dense": dense,
        **{name: found[name] for name in (*OF_MATRICES, *WITH_OWNERS) if name in found},
        "muon_gathering": muon_gathering(alike) if is_matrix else dense,
        **{name: averaged(alike, found[name]) for name in OF_ENTRIES},
    }
