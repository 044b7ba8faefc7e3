"""What a step on one H200 is to reach, and whether rows of these benchmarks say that it does."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from gpu_calls import CALLS
from gpu_lists import CONDITIONS, LISTS, METHODS, RANKS, factors_of
from rows import Row, beside, select

STEP_MS = {
    ("d/4", "high"): (34, 34),
    ("d/16", "high"): (16, 16),
    ("d", "high"): (160, 160),
    ("d/4", "medium"): (20, 17),
    ("d/16", "medium"): (14, 12),
    ("d", "medium"): (85, 65),
}
"""Of 1.3B on an H200, by rank and precision: now, and later."""
DEFAULT = {"state": "FP32", "precision": "high"}  # of the optimizer, to which the targets of time refer
OVER = {
    "NorMuon": ("torchdion.Muon", 1.05),
    "Dion2": ("AdamW", 2.2),
    "Dion3": ("AdamW", 2.2),
    "AdamW": ("AdamW", 1.0),
}
"""Of 1.3B, steps of this library's optimizers over those of "torchdion.Muon" or of torch's fused "AdamW"."""


class Figure(NamedTuple):
    value: float | None  # None: not measured
    outcome: str


class Target(NamedTuple):
    """A bound for a number, how it is found (every number that it holds for), and the call after which it is known.

    Attributes:
        now: what must hold.
        wanted: what it is to become; the same where nothing else is named.
        is_least: whether these are lower bounds.
        needed: how many numbers there are: of fewer it is not known.
    """

    claim: str
    call: str
    figures: Callable[[Sequence[Row]], list[float]]
    now: float
    wanted: float
    is_least: bool = False
    needed: int = 1

    def check(self, rows: Sequence[Row]) -> Figure:
        """The worst of the figures decides."""
        found = self.figures(rows)
        if len(found) < self.needed:
            return Figure(None, "not measured")
        if any(map(math.isnan, found)):
            return Figure(math.nan, "missed")
        worst = min(found) if self.is_least else max(found)
        reached = [worst >= bound if self.is_least else worst <= bound for bound in (self.wanted, self.now)]
        return Figure(worst, "reached" if reached[0] else "reached for now" if reached[1] else "missed")

    def shown(self, bound: float) -> str:
        return f"{'≥' if self.is_least else '≤'} {bound:g}"


def dion(rows: Sequence[Row], name: str, mode: str = "eager", **labels: str) -> list[Row]:
    return select(rows, kind="step", list=name, optimizer="Dion", mode=mode, **DEFAULT, **labels)


def over_roofline(rows: Sequence[Row]) -> list[float]:
    return [row["ms"] / row["least_ms"] for row in rows]


def rival_over(rows: Sequence[Row], name: str, optimizer: str, rank: str) -> list[float]:
    """A rival's step over Dion's of the same run. torch's have no rank; microsoft/dion's has Dion's own."""
    labels = {"rank": rank, "state": DEFAULT["state"]} if optimizer == "dion package" else {}
    rivals = select(rows, kind="step", list=name, optimizer=optimizer, mode="eager", **labels)
    return [rival["ms"] / own["ms"] for rival in rivals for own in dion(rows, name, beside(optimizer), rank=rank)]


def ms_of(rows: Sequence[Row], name: str, optimizer: str, mode: str = "eager") -> list[float]:
    """A step of an optimizer that has no rank."""
    return [row["ms"] for row in select(rows, kind="step", list=name, optimizer=optimizer, mode=mode)]


def over_other(rows: Sequence[Row], name: str, optimizer: str, other: str) -> list[float]:
    """A step of one optimizer over another's, both eager and of one run."""
    return [own / ms for own in ms_of(rows, name, optimizer) for ms in ms_of(rows, name, other)]


def launches_of_group(rows: Sequence[Row], name: str, rank: str) -> list[float]:
    found = select(rows, kind="launches", list=name, optimizer="Dion", rank=rank, **DEFAULT)
    return [row["launches"] / row["groups"] for row in found]


def orthogonality(rows: Sequence[Row], precision: str) -> list[float]:
    """Infinite where columns were dropped though all are far longer than what is rounded."""
    distinct = 1e2 if precision == "highest" else 1e0
    return [
        math.inf if row["zero_columns"] and row["condition"] <= distinct else row["error"]
        for row in select(rows, kind="orthogonality", precision=precision)
    ]


def targets(large: str = "1.3b", small: str = "120m") -> list[Target]:
    """Of these lists of matrices."""
    _, steps, peers = CALLS
    shown, few = large.upper(), small.upper()

    def roofline(rank: str) -> Callable[[Sequence[Row]], list[float]]:
        return lambda rows: over_roofline(dion(rows, large, rank=rank))

    def rival(optimizer: str) -> Callable[[Sequence[Row]], list[float]]:
        return lambda rows: rival_over(rows, large, optimizer, "d/4")

    def dion_ms(rank: str, precision: str) -> Callable[[Sequence[Row]], list[float]]:
        labels = {"list": large, "rank": rank, "state": DEFAULT["state"], "precision": precision}
        return lambda rows: [row["ms"] for row in select(rows, kind="step", optimizer="Dion", mode="eager", **labels)]

    def over_adamw(rows: Sequence[Row]) -> list[float]:
        return [1 / found for found in rival_over(rows, large, "AdamW", "d/16")]

    factors = sum(len({size[1:] for size in factors_of(LISTS[name](), RANKS["d/4"])}) for name in {large, small})
    of_factors = factors * len(CONDITIONS) * len(METHODS)
    return [
        Target(f"{shown}, r = d/4: a step over the roofline", steps, roofline("d/4"), 1.5, 1.15),
        Target(f"{shown}, r = d/16: a step over the roofline", steps, roofline("d/16"), 1.6, 1.3),
        Target(f"{shown}, r = d/4: a step of microsoft/dion over this", peers, rival("dion package"), 10, 10, True),
        Target(f"{shown}, r = d/4: a step of torch.optim.Muon over this", peers, rival("Muon"), 2, 2, True),
        Target(f"{shown}, r = d/16: a step over that of AdamW(fused=True)", peers, over_adamw, 2, 2),
        Target(
            f"{few}, r = d/4: launches per group of equal shapes",
            steps,
            lambda rows: launches_of_group(rows, small, "d/4"),
            now=40,
            wanted=40,
        ),
        Target(
            f"{few}, every r: a step over the roofline, as a graph",
            steps,
            lambda rows: over_roofline(dion(rows, small, "graph")),
            now=2,
            wanted=2,
            needed=len(RANKS),
        ),
        *(
            Target(
                f"‖PᵀP − I‖₂ at precision {precision}, κ(P) to 1e8",
                peers,
                partial(orthogonality, precision=precision),
                now=bound,
                wanted=bound,
                needed=of_factors,
            )
            for precision, bound in (("high", 2e-3), ("highest", 1e-5), ("medium", 1e-2))
        ),
        *(
            Target(f"{shown}, r = {rank}, {precision}: a step in ms", steps, dion_ms(rank, precision), now, wanted)
            for (rank, precision), (now, wanted) in STEP_MS.items()
        ),
        *targets_without_rank(large, small),
    ]


def targets_without_rank(large: str, small: str) -> list[Target]:
    """Of this library's optimizers beside Dion: Muon's step is less by its kernel for symmetric products."""
    _, _, peers = CALLS

    def in_ms(name: str, optimizer: str, bound: float, mode: str = "eager", how: str = "") -> Target:
        figures = partial(ms_of, name=name, optimizer=optimizer, mode=mode)
        return Target(f"{name.upper()}: a step of {optimizer} in ms{how}", peers, figures, bound, bound)

    def over(optimizer: str, other: str, bound: float) -> Target:
        figures = partial(over_other, name=large, optimizer=f"torchdion.{optimizer}", other=other)
        of = "AdamW(fused=True)" if other == "AdamW" else other
        claim = f"{large.upper()}: a step of torchdion.{optimizer} over that of {of}"
        return Target(claim, peers, figures, bound, bound)

    return [
        in_ms(large, "torchdion.Muon", 96, "cuBLAS alone", ", products by cuBLAS alone"),
        in_ms(large, "torchdion.Muon", 70),
        *(over(optimizer, other, bound) for optimizer, (other, bound) in OVER.items()),
        in_ms(large, "torchdion.Lion", 6.3),
        in_ms(small, "torchdion.Muon", 3, "graph", ", as a CUDA graph"),
    ]
