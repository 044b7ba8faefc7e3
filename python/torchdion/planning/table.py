"""A plan as text."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchdion.planning.names import pattern

if TYPE_CHECKING:
    from torchdion.planning.plan import Estimate, Plan
    from torchdion.planning.rows import Row

_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def table(plan: "Plan") -> str:
    """The parameters, then a line for each optimizer, then notes."""
    mesh = " ".join(f"{name}={size}" for name, size in plan.mesh.items())
    options = plan.options
    heading = (
        f"rank {plan.rank} of {mesh or 'one rank'} · {plan.machine.name}, {plan.efficiency:.0%} of peak · Dion "
        f"r = {options['rank_fraction']:g} min(m, n), {options['orientation']}, {options['orthonormalize']}"
    )
    return "\n\n".join([heading, _parameters(plan), _optimizers(plan), "\n".join(plan.notes)])


def _parameters(plan: "Plan") -> str:
    titles = ("parameters", "number", "algorithm", "shape", "here", "cut by", "r", "Q here", "state")
    lines = [_parameter_line(row) for row in plan.rows]
    return _aligned([titles, *lines])


def _parameter_line(row: "Row") -> tuple[str, ...]:
    cuts = ", ".join(f"{side} {axis}" for side, axis in row.cuts.items())
    algorithm = row.algorithm if row.orientation is None else f"{row.algorithm} {row.orientation}"
    return (
        pattern(row.names),
        str(len(row.names)),
        f"{algorithm}, dense" if row.compresses is False else algorithm,
        _shape(row.shape),
        _shape(row.piece),
        cuts or "-",
        "-" if row.rank is None else str(row.rank),
        "-" if row.piece_of_Q is None else _shape(row.piece_of_Q),
        f"{quantity(row.costs['dion_dense'].state_bytes)}B",
    )


def _optimizers(plan: "Plan") -> str:
    titles = ["per rank and step", "state", "operations", "compute"]
    for axis in plan.links:
        titles += [f"{axis} elements", f"{axis} time"]
    estimates = dict(plan.estimates)
    if estimates["dion_dense"] == estimates["dion_compressed"]:
        estimates = {"dion": estimates.pop("dion_compressed"), **estimates}
        del estimates["dion_dense"]
    lines = [_optimizer_line(name, estimate, plan) for name, estimate in estimates.items()]
    return _aligned([(*titles, "step"), *lines])


def _optimizer_line(name: str, estimate: "Estimate", plan: "Plan") -> tuple[str, ...]:
    cost = estimate.cost
    cells = [
        name.replace("_", " "),
        f"{quantity(cost.state_bytes)}B",
        quantity(cost.flops),
        duration(estimate.compute_seconds),
    ]
    for axis in plan.links:
        is_used = axis in cost.elements
        cells += [quantity(cost.elements[axis]) if is_used else "-"]
        cells += [duration(estimate.axis_seconds[axis]) if is_used else "-"]
    return (*cells, f"{duration(estimate.overlapped_seconds)} to {duration(estimate.seconds)}")


def quantity(number: float) -> str:
    """Three digits and a unit: 12345 is "12.3 k"."""
    for factor, unit in _UNITS:
        if number >= factor:
            return f"{number / factor:#.3g}".rstrip(".") + f" {unit}"
    return f"{number:g} "


def duration(seconds: float) -> str:
    """Three digits and a unit: 0.01234 is "12.3 ms"."""
    for factor, unit in ((86400.0, "days"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def _shape(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape)) or "1"


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    """Columns two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
