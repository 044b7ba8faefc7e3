"""What a step on one H100 is to reach, and whether rows of these benchmarks say that it does."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Row = dict[str, Any]
DEFAULT = {"state": "FP32", "precision": "high"}  # of the optimizer, to which the targets of time refer


class Figure(NamedTuple):
    value: float | None  # None: not measured
    wanted: str
    reached: bool

    @property
    def outcome(self) -> str:
        return "not measured" if self.value is None else "reached" if self.reached else "missed"


class Target(NamedTuple):
    """A bound for a number, and how it is found: every number that it holds for."""

    claim: str
    figures: Callable[[Sequence[Row]], list[float]]
    at_most: float | None = None
    at_least: float | None = None

    def check(self, rows: Sequence[Row]) -> Figure:
        """The worst of the figures decides."""
        found = self.figures(rows)
        if self.at_most is not None:
            worst = max(found, default=None)
            return Figure(worst, f"≤ {self.at_most:g}", worst is not None and worst <= self.at_most)
        assert self.at_least is not None
        worst = min(found, default=None)
        return Figure(worst, f"≥ {self.at_least:g}", worst is not None and worst >= self.at_least)


def select(rows: Sequence[Row], **labels: Any) -> list[Row]:
    """The rows with these labels, of those that have numbers."""
    return [
        row for row in rows if "problem" not in row and all(row.get(name) == value for name, value in labels.items())
    ]


def dion(rows: Sequence[Row], name: str, mode: str = "eager", **labels: Any) -> list[Row]:
    return select(rows, kind="step", list=name, optimizer="Dion", mode=mode, **DEFAULT, **labels)


def over_roofline(rows: Sequence[Row]) -> list[float]:
    return [row["ms"] / row["least_ms"] for row in rows]


def rival_over(rows: Sequence[Row], name: str, optimizer: str, rank: str) -> list[float]:
    """A rival's step over Dion's. torch's have no rank; microsoft/dion's has Dion's own."""
    labels = {"rank": rank, "state": DEFAULT["state"]} if optimizer == "dion package" else {}
    rivals = select(rows, kind="step", list=name, optimizer=optimizer, mode="eager", **labels)
    return [rival["ms"] / own["ms"] for rival in rivals for own in dion(rows, name, rank=rank)]


def launches_of_group(rows: Sequence[Row], name: str, rank: str) -> list[float]:
    found = select(rows, kind="launches", list=name, optimizer="Dion", rank=rank, **DEFAULT)
    return [row["launches"] / row["groups"] for row in found]


def orthogonality(rows: Sequence[Row], precision: str) -> list[float]:
    return [row["error"] for row in select(rows, kind="orthogonality", precision=precision)]


TARGETS = (
    Target(
        "1.3B, r = d/4: a step over the roofline",
        lambda rows: over_roofline(dion(rows, "1.3b", rank="d/4")),
        at_most=1.5,
    ),
    Target(
        "1.3B, r = d/4: a step of microsoft/dion over this",
        lambda rows: rival_over(rows, "1.3b", "dion package", "d/4"),
        at_least=10,
    ),
    Target(
        "1.3B, r = d/4: a step of torch.optim.Muon over this",
        lambda rows: rival_over(rows, "1.3b", "Muon", "d/4"),
        at_least=2,
    ),
    Target(
        "1.3B, r = d/16: a step over that of AdamW(fused=True)",
        lambda rows: [1 / ratio for ratio in rival_over(rows, "1.3b", "AdamW", "d/16")],
        at_most=2,
    ),
    Target(
        "120M, r = d/4: launches per group of equal shapes",
        lambda rows: launches_of_group(rows, "120m", "d/4"),
        at_most=40,
    ),
    Target(
        "120M, every r: a step over the roofline, as a graph",
        lambda rows: over_roofline(dion(rows, "120m", "graph")),
        at_most=2,
    ),
    Target("‖PᵀP − I‖₂ at precision high, κ(P) to 1e8", lambda rows: orthogonality(rows, "high"), at_most=2e-3),
    Target("‖PᵀP − I‖₂ at precision highest, κ(P) to 1e8", lambda rows: orthogonality(rows, "highest"), at_most=1e-5),
)
