"""What a step costs on a mesh: memory, operations, traffic and time of every optimizer."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from torchdion import _C
from torchdion.dtensor import is_dtensor
from torchdion.layouts import Layouts
from torchdion.meshes import Meshes
from torchdion.mixed_precision import DionMixedPrecisionConfig, name_dtypes, state_dtypes
from torchdion.options import (
    DEFAULTS,
    Orientation,
    Orthonormalize,
    Precision,
    Residual,
    RightFactor,
    check_options,
)
from torchdion.planning.costs import Cost, total
from torchdion.planning.described import DescribedLayouts
from torchdion.planning.grid import Grid, check_described
from torchdion.planning.machines import EFFICIENCY, MACHINES, Machine
from torchdion.planning.optimizers import OPTIMIZERS, own_precision
from torchdion.planning.rows import Row, parameters_of, planned_parameters, replicas_of, rows_of, under_muon
from torchdion.planning.table import table
from torchdion.routing import param_groups
from torchdion.table import OPTIONS
from torchdion.words import shown, speaking_as


@dataclass(frozen=True)
class Link:
    """The network of an axis.

    Args:
        size: ranks of the axis.
        ranks_in_node: of these, in this rank's node.
        bandwidth: of a rank, in bytes per second and one direction.
    """

    size: int
    ranks_in_node: int
    bandwidth: float


@dataclass(frozen=True)
class Estimate:
    """A whole step of an optimizer on one rank; times in seconds.

    Args:
        cost: of all parameters.
        compute_seconds: for each row the longer of operations and memory traffic.
        axis_seconds: by axis.
        seconds: where nothing overlaps: the sum of the above.
        overlapped_seconds: where everything does: the largest of them.
    """

    cost: Cost
    compute_seconds: float
    axis_seconds: dict[str, float]
    seconds: float
    overlapped_seconds: float


@dataclass(frozen=True)
class Plan:
    """What :func:`torchdion.plan` finds; ``print`` it, or take its fields.

    Args:
        mesh: ranks by dimension.
        rank: whose numbers these are.
        options: of Dion.
        machine, efficiency: that times are estimated for.
        rows: the parameters.
        links: by axis.
        estimates: by optimizer, the keys of ``torchdion.planning.optimizers.OPTIMIZERS``; without those of whole
            parameters where the mesh cuts any.
        notes: what to know of the numbers, in sentences.
    """

    mesh: dict[str, int]
    rank: int
    options: dict[str, Any]
    machine: Machine
    efficiency: float
    rows: list[Row]
    links: dict[str, Link]
    estimates: dict[str, Estimate]
    notes: list[str]

    def row_of(self, name: str) -> Row:
        """The row of a parameter."""
        for row in self.rows:
            if name in row.names:
                return row
        raise KeyError(name)

    def as_dict(self) -> dict[str, Any]:
        """Everything as numbers, strings, lists and dicts, as json.dumps() takes it."""
        return asdict(self)

    def __str__(self) -> str:
        return table(self)


@speaking_as("torchdion.plan")
def plan(
    model: nn.Module | list[dict[str, Any]],
    mesh: DeviceMesh | Mapping[str, int],
    *,
    rank_fraction: float = 1.0,
    rank_multiple_of: int = 1,
    replicate_rank_fraction: float = 1 / 128,
    fraction: float = 0.25,
    chunk_size: int = 64,
    top_k: int = 32,
    orientation: Orientation = "right",
    orthonormalize: Orthonormalize = "auto",
    rcqr_oversample: float = 1.25,
    right_factor: RightFactor = "normalized",
    residual: Residual | None = None,
    scalar_algorithm: str = "lion",
    precision: Precision | None = None,
    mixed_precision_config: DionMixedPrecisionConfig | None = None,
    replicas: Iterable[str] | None = None,
    fs_cuts: str = "rows",
    tp_plan: Mapping[str, Any] | None = None,
    machine: str | Machine = "h100",
    efficiency: float = EFFICIENCY,
) -> Plan:
    """What a step of each optimizer costs one rank of a mesh, without a step: the model may be on ``meta``.

    Args:
        model: a module, routed by :func:`torchdion.param_groups`, or groups of (name, parameter) pairs as
            :class:`torchdion.Dion` takes them. Under pipeline parallelism, what one stage holds.
        mesh: the ranks. A DeviceMesh, or sizes of its dimensions, such as ``{"dp": 2, "fs": 4, "tp": 8}``, the last of
            which is that of neighbours; then this is the first rank.
        rank_fraction, rank_multiple_of, orientation, orthonormalize, rcqr_oversample: as in :class:`torchdion.Dion`.
        right_factor, scalar_algorithm, precision, mixed_precision_config: as in :class:`torchdion.Dion`.
        residual: as in :class:`torchdion.Dion`. With one there is no compressed Dion where replicas would keep momenta
            of their own.
        replicate_rank_fraction: of :class:`torchdion.DoubleDion`.
        fraction: of :class:`torchdion.Dion2` and :class:`torchdion.Dion3`.
        chunk_size, top_k: of :class:`torchdion.DeMo`.
        replicas: names of the mesh dimensions along which gradients differ. None: dp of plain parameters, of DTensors
            those that cut none.
        fs_cuts: of plain parameters, what fs cuts: "rows" (dimension 0 of every parameter, as ``fully_shard`` does) or
            "other" (dimension 1 where tp cuts dimension 0, by a ``shard_placement_fn``; the paper's layout).
        tp_plan: of plain parameters, how tp cuts modules: name or pattern → "colwise", "rowwise" or "replicate", or
            torch's ParallelStyles. None: Megatron-LM's rule, by the modules' usual names (q_proj, up, w1, …);
            ``notes`` says which matrices it leaves whole.
        machine: a name in ``torchdion.planning.machines.MACHINES``, or a Machine.
        efficiency: the share of the machine's peak rate that products reach.

    Where parameters are DTensors (``fully_shard``, ``parallelize_module``, on real or fake process groups), their cuts
    are read off them; every rank must call this then, as the optimizer's first step must be. Where all are plain
    tensors, fs and tp cut them as said above.

    Layouts, ranks and elements are the library's own: on a real mesh ``optimizer.stats()["traffic"]`` counts the same.

    The model of time, in seconds: products take operations / (efficiency × peak rate) at ``precision``, of Muon that is
    run elsewhere in BF16; passes over memory take bytes / bandwidth; for each row the longer counts. Traffic takes
    bytes / bandwidth: inside a node that of its own network, else that of the cards of those ranks of the axis that
    share a node.
    ``seconds`` adds all this up, ``overlapped_seconds`` is the largest term: the truth lies between, or above for small
    models. Left out are the latency of collectives and kernels, congestion, the lower rate of small or thin products
    and of factorizations, waiting for slower ranks, and whatever forward and backward do, FSDP2's gathering of weights
    and scattering of gradients included, which is the same for all. The averaging of gradients over replicas is
    counted, though backward may hide it, because compression replaces it.

    Raises:
        ValueError: a mesh, an option or a layout that cannot be; one sentence names it.
        TypeError: ``model`` is no module.

    Example:
        >>> model = nn.Sequential(nn.Linear(256, 1024), nn.Linear(1024, 256))
        >>> found = plan(model, {"dp": 8}, rank_fraction=0.25)
        >>> found.row_of("0.weight").rank
        64
        >>> found.estimates["dion_compressed"].cost.elements, found.estimates["adamw"].cost.elements
        ({'dp': 165120}, {'dp': 525568})
    """
    given = dict(locals())
    options = {name: value for name, value in given.items() if name in OPTIONS}
    options |= state_dtypes(mixed_precision_config, "")
    name_dtypes(options)
    check_options(options, "")
    node = _checked_machine(machine, efficiency)
    groups = _groups_of(model, options)
    grid = Grid(mesh)
    layouts = _layouts_for(groups, grid, mesh, fs_cuts, tp_plan)
    parameters, axis = planned_parameters(groups, layouts), replicas_of(groups, grid, replicas)
    rows = rows_of(parameters, under_muon(parameters, layouts, grid, axis), grid, axis)
    links = _links(grid, rows, node)
    precisions = {name: precision or own_precision(name) for name in OPTIMIZERS} | {"muon_gathering": "medium"}
    estimates = {
        name: _estimate([row.costs[name] for row in rows], node, efficiency * node.rate(precisions[name]), links)
        for name in OPTIMIZERS
        if all(name in row.costs for row in rows)
    }
    return Plan(grid.sizes, grid.rank, options, node, efficiency, rows, links, estimates, _notes(layouts, grid))


def _checked_machine(machine: Any, efficiency: Any) -> Machine:
    if not isinstance(efficiency, (int, float)) or not 0 < efficiency <= 1:
        raise ValueError(f"torchdion.plan: efficiency must be in (0, 1], got {shown(efficiency)}")
    if isinstance(machine, Machine):
        return machine
    if not isinstance(machine, str) or machine not in MACHINES:
        raise ValueError(
            f"torchdion.plan: machine must be a Machine or one of {', '.join(MACHINES)}, got {shown(machine)}"
        )
    return MACHINES[machine]


def _groups_of(model: Any, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Groups of (name, parameter) pairs, with every option."""
    given = model if isinstance(model, list) else param_groups(model, scalar_algorithm=options["scalar_algorithm"])
    for group in given:
        if not isinstance(group, dict) or "params" not in group:
            raise TypeError(
                "torchdion.plan: model must be a module or a list of groups of (name, parameter) pairs, such as "
                f"[{{'params': list(model.named_parameters())}}], got a list that holds {type(group).__name__}"
            )
    groups = [{**DEFAULTS, **options, **group} for group in given]
    for index, group in enumerate(groups):
        where = f" (parameter group {index})"
        check_options(group, where)
        _C.GroupKeys.choose_algorithm(group, "muon", "algorithm" in given[index], where)
        if not isinstance(group["params"], Iterable):
            raise TypeError(
                f"torchdion.plan: groups must hold (name, parameter) pairs, got {type(group['params']).__name__} "
                f"(parameter group {index})"
            )
        for entry in group["params"]:
            if not (isinstance(entry, tuple) and len(entry) == 2):
                raise ValueError(
                    f"torchdion.plan: groups must hold (name, parameter) pairs, got {type(entry).__name__} (parameter "
                    f"group {index})"
                )
    return groups


def _layouts_for(
    groups: list[dict[str, Any]],
    grid: Grid,
    mesh: DeviceMesh | Mapping[str, int],
    fs_cuts: str,
    tp_plan: Mapping[str, Any] | None,
) -> Layouts | DescribedLayouts:
    if not any(is_dtensor(param) for _, param, _ in parameters_of(groups)):
        check_described(tuple(grid.sizes))
        return DescribedLayouts(grid, fs_cuts, tp_plan)
    if not isinstance(mesh, DeviceMesh):
        raise ValueError(f"torchdion.plan: mesh must be the DeviceMesh of a model with DTensors, got {shown(mesh)}")
    if fs_cuts != "rows" or tp_plan is not None:
        raise ValueError("torchdion.plan: fs_cuts and tp_plan must be left out where DTensors say how they are cut")
    return Layouts(Meshes())


def _links(grid: Grid, rows: list[Row], machine: Machine) -> dict[str, Link]:
    """Of every axis that some optimizer uses."""
    used = {axis for row in rows for cost in row.costs.values() for axis in cost.bytes}
    links = {}
    for axis in sorted(used, key=lambda axis: [list(grid.sizes).index(side) for side in grid.sides_of_axis(axis)]):
        line = grid.line(grid.sides_of_axis(axis))
        node = grid.rank // machine.gpus_per_node
        here = sum(rank // machine.gpus_per_node == node for rank in line)
        links[axis] = Link(len(line), here, machine.bandwidth(here, here == len(line)))
    return links


def _estimate(costs: list[Cost], machine: Machine, rate: float, links: dict[str, Link]) -> Estimate:
    cost = total(costs)
    compute = sum(max(each.flops / rate, each.memory_bytes / machine.memory) for each in costs)
    by_axis = {axis: cost.bytes[axis] / link.bandwidth for axis, link in links.items() if axis in cost.bytes}
    terms = [compute, *by_axis.values()]
    return Estimate(cost, compute, by_axis, sum(terms), max(terms))


def _notes(layouts: Layouts | DescribedLayouts, grid: Grid) -> list[str]:
    notes = [
        "Times are between the largest term (all overlap) and the sum (none does); latency, and what forward and "
        "backward send for FSDP2 and tensor parallelism, are left out."
    ]
    if isinstance(layouts, DescribedLayouts) and grid.size > 1:
        notes.append(layouts.rule())
    return notes
