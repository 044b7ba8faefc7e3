"""A plan as text."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchdion.command_line import aligned
from torchdion.planning.optimizers import OPTIMIZERS

if TYPE_CHECKING:
    from torchdion.planning.plan import Estimate, Plan
    from torchdion.planning.rows import Row

_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))

_ROUNDS_UP = 0.9995  # of a unit, to 1.00

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")  # a part of its own

_MEANINGS = {
    "dion": "nothing is compressed: no replicas exchange matrices for which it would pay, or a residual forbids it",
    **{name.replace("_", " "): meaning for name, meaning in OPTIMIZERS.items()},
}


def table(plan: "Plan") -> str:
    """The parameters; what each optimizer needs and sends; what all that means."""
    mesh = " ".join(f"{name}={size}" for name, size in plan.mesh.items())
    options = plan.options
    heading = (
        f"rank {plan.rank} of {mesh or 'one rank'} · {plan.machine.name}, {plan.efficiency:.0%} of peak · Dion "
        f"r = {options['rank_fraction']:g} min(m, n), {options['orientation']}, {options['orthonormalize']}"
    )
    estimates = by_label(plan)
    tables = [_parameters(plan), _costs_of_dion(plan), _needs(estimates)]
    if plan.links:
        tables.append(_traffic(estimates, plan))
    meanings = [(label, _MEANINGS[label]) for label in estimates]
    return "\n\n".join([heading, *tables, aligned(meanings), "\n".join(plan.notes)])


def by_label(plan: "Plan") -> dict[str, "Estimate"]:
    """The estimates by what tables call them."""
    estimates = {name.replace("_", " "): estimate for name, estimate in plan.estimates.items()}
    if estimates["dion dense"] == estimates.get("dion compressed", estimates["dion dense"]):
        estimates.pop("dion compressed", None)
        estimates = {"dion": estimates.pop("dion dense"), **estimates}
    return estimates


def _parameters(plan: "Plan") -> str:
    titles = ("parameters", "number", "algorithm", "shape", "here", "cut by", "r", "Q here")
    return aligned([titles, *(_parameter_line(row) for row in plan.rows)])


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
    )


def _costs_of_dion(plan: "Plan") -> str:
    """Of the same parameters."""
    costs = [(pattern(row.names), row.costs.get("dion_compressed", row.costs["dion_dense"])) for row in plan.rows]
    axes = [axis for axis in plan.links if any(axis in cost.elements for _, cost in costs)]
    titles = ("Dion's", "state", "operations", *(f"{axis} elements" for axis in axes))
    lines = [
        (
            names,
            f"{quantity(cost.state_bytes)}B",
            quantity(cost.flops),
            *(quantity(cost.elements[axis]) if axis in cost.elements else "-" for axis in axes),
        )
        for names, cost in costs
    ]
    return aligned([titles, *lines])


def _needs(estimates: dict[str, "Estimate"]) -> str:
    titles = ("per rank and step", "state", "operations", "memory traffic", "compute", "whole step")
    lines = [
        (
            label,
            f"{quantity(estimate.cost.state_bytes)}B",
            quantity(estimate.cost.flops),
            f"{quantity(estimate.cost.memory_bytes)}B",
            duration(estimate.compute_seconds),
            f"{duration(estimate.overlapped_seconds)} to {duration(estimate.seconds)}",
        )
        for label, estimate in estimates.items()
    ]
    return aligned([titles, *lines])


def _traffic(estimates: dict[str, "Estimate"], plan: "Plan") -> str:
    """Elements, bytes and time on each axis."""
    titles = [f"{axis}: {link.size} ranks, {quantity(link.bandwidth)}B/s" for axis, link in plan.links.items()]
    lines = [(label, *(_on_axis(estimate, axis) for axis in plan.links)) for label, estimate in estimates.items()]
    return aligned([("elements, bytes sent, time", *titles), *lines])


def _on_axis(estimate: "Estimate", axis: str) -> str:
    if axis not in estimate.axis_seconds:
        return "-"
    elements, sent = (quantity(count[axis]) for count in (estimate.cost.elements, estimate.cost.bytes))
    return f"{elements.strip()}, {sent}B, {duration(estimate.axis_seconds[axis])}"


def quantity(number: float) -> str:
    """Three digits and the beginning of a unit: 12345 is "12.3 k"."""
    for factor, unit in _UNITS:
        if number >= _ROUNDS_UP * factor:
            return f"{_digits(number / factor)} {unit}"
    return f"{number:g} "


def duration(seconds: float) -> str:
    """Three digits and a unit: 0.01234 is "12.3 ms"."""
    for factor, unit in ((86400.0, "days"), (3600.0, "h"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= _ROUNDS_UP * factor:
            return f"{_digits(seconds / factor)} {unit}"
    return f"{_digits(seconds / 1e-9)} ns" if seconds else "0"


def _digits(number: float) -> str:
    return f"{number:,.0f}" if number >= 999.5 else f"{number:#.3g}".rstrip(".")


def _shape(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape)) or "1"


def pattern(names: Sequence[str]) -> str:
    """Joins names that differ in numbers, or else in one part.

    >>> pattern(["layers.0.mlp.up.weight", "layers.0.mlp.gate.weight", "layers.1.mlp.up.weight"])
    'layers.*.mlp.{up,gate}.weight'
    """
    joined: list[list[list[str]]] = []  # of each pattern the parts, of each part its words
    for name in dict.fromkeys(_NUMBER.sub("*", name) for name in names):
        parts = name.split(".")
        for pattern in joined:
            position = _one_difference(pattern, parts)
            if position is not None:
                pattern[position].append(parts[position])
                break
        else:
            joined.append([[part] for part in parts])
    return ", ".join(".".join(map(_alternatives, parts)) for parts in joined)


def _one_difference(pattern: list[list[str]], parts: list[str]) -> int | None:
    """Where a name differs from a pattern, if it can join it there."""
    if len(pattern) != len(parts):
        return None
    positions = [position for position, words in enumerate(pattern) if words != [parts[position]]]
    return positions[0] if len(positions) == 1 else None


def _alternatives(words: list[str]) -> str:
    return words[0] if len(words) == 1 else "{" + ",".join(words) + "}"
