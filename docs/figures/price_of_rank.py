"""What a rank costs: loss, and steps to one, against the operations of a step, from rank 0 to Muon.

From the committed study (benchmarks/results/compare/residual, part "ranks"); operations are those of the matrices of a
GPT with 1.3B parameters, as benchmarks/rank_prices.py counts them.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from error_feedback import Plot
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "benchmarks" / "gpu")]

from gpu_lists import LISTS  # noqa: E402
from rank_prices import BASELINE, PART, committed, prices  # noqa: E402

STEP = 80
"""At which losses are compared: the last validation before the first optimizer is at its target."""
RANK_0 = 0.004
"""Where rank 0 is drawn, whose step multiplies nothing."""
FAMILIES = {
    "Dion Nesterov": ("Dion", "#0b5fa5"),
    "Signs": ('Dion, residual="sign"', "#d9731a"),
    BASELINE: ("Muon", "#444444"),
}


class Point(NamedTuple):
    operations: float
    value: float
    low: float
    high: float
    rank: str


def curve(axes: Axes, points: Sequence[Point], label: str, color: str) -> None:
    x, y, low, high, ranks = zip(*sorted(points), strict=True)
    bars = [[a - b for a, b in zip(y, low, strict=True)], [a - b for a, b in zip(high, y, strict=True)]]
    axes.errorbar(x, y, yerr=bars, color=color, label=label, marker="o" if len(x) > 1 else "D", markersize=5, capsize=2)
    for place, rank in zip(zip(x, y, strict=True), ranks, strict=True):
        axes.annotate(rank, place, xytext=(5, 4), textcoords="offset points", fontsize=8, color=color)


def points() -> tuple[dict[str, list[Point]], dict[str, list[Point]]]:
    """By family: losses with those of the lowest and the highest seed, and steps with their intervals."""
    losses: dict[str, list[Point]] = {name: [] for name in FAMILIES}
    steps: dict[str, list[Point]] = {name: [] for name in FAMILIES}
    group = committed(PART)
    for row, price in zip(group, prices(group, LISTS["1.3b"]()), strict=True):
        family, _, rank = row.name.partition(" r = ")
        operations = price["operations"] or RANK_0
        after = [dict(run.validation)[STEP] for run in row.runs.values()]
        losses[family].append(Point(operations, sum(after) / len(after), min(after), max(after), rank))
        if price["steps"] is not None:
            low, high = (1.0, 1.0) if row.name == BASELINE else (price["low"], price["high"])
            steps[family].append(Point(operations, price["steps"], low, high, rank))
    return losses, steps


def drawing() -> Plot:
    with style.context("torchdion.figures"):
        figure = Figure(figsize=(9.2, 3.7))
        left, right = figure.subplots(1, 2)
        for axes, found in zip((left, right), points(), strict=True):
            for name, (label, color) in FAMILIES.items():
                curve(axes, found[name], label, color)
            axes.set_xscale("log")
            axes.set_xticks([RANK_0, 0.01, 0.03, 0.1, 0.3, 1], ["0", "0.01", "0.03", "0.1", "0.3", "1"])
            axes.minorticks_off()
            axes.set_xlabel("operations of the optimizer's step, over Muon's")
        left.set_ylabel(f"validation loss after {STEP} steps")
        right.set_ylabel("steps to a loss of 1.65, over Muon's")
        right.legend()
        return Plot(figure)
