"""The README's picture: a small GPT's validation loss against bytes sent, and against time over a slow network.

From the committed study (benchmarks/results/compare/paper-tiny): four replicas, the mean over its seeds at each
optimizer's best rate; the steps of a curve are those that all seeds have.
"""

import sys
from pathlib import Path

from error_feedback import Plot
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples" / "gpt"))

from comparison import links, study, summary  # noqa: E402
from comparison.results import Results  # noqa: E402
from comparison.step_times import timed  # noqa: E402

PART, MEGABITS = "replicas", 10
SHOWN = {
    "AdamW, dense": ("AdamW", "#7f7f7f"),
    "Muon, dense": ("Muon, gradients averaged", "#d9731a"),
    "Muon, compressed": ("Muon", "#b3352f"),
    "Dion r = d/4, compressed": ("Dion, r = d/4", "#0b5fa5"),
    "DeMo, compressed": ("DeMo", "#2b8a57"),
}


def mean_curve(row: summary.Row) -> list[tuple[int, float]]:
    """(step, loss) of the steps that all seeds have."""
    runs = [dict(run.validation) for run in row.runs.values()]
    steps = sorted(set.intersection(*(set(run) for run in runs)))
    return [(step, sum(run[step] for run in runs) / len(runs)) for step in steps]


def curve(axes: Axes, x: list[float], losses: list[float], label: str, color: str) -> None:
    axes.plot(x, losses, color=color, label=label, marker="o", markersize=3)


def drawing() -> Plot:
    folder = ROOT / "benchmarks" / "results" / "compare" / "paper-tiny"
    asked = study.read(ROOT / "examples" / "gpt" / "studies" / "paper-tiny.toml")
    part = next(each for each in asked.parts if each.name == PART)
    rows = {row.name: row for group in summary.groups(asked, part, Results(folder, None)) for row in group}
    measured = {(link.part, link.timed): link for link in links.read(folder) if link.megabits == MEGABITS}
    with style.context("torchdion.figures"):
        figure = Figure(figsize=(9.2, 3.7))
        left, right = figure.subplots(1, 2, sharey=True)
        for name, (label, color) in SHOWN.items():
            link = measured[PART, timed(rows[name].setting)]
            steps, losses = map(list, zip(*mean_curve(rows[name]), strict=True))
            curve(left, [step * link.sent for step in steps], losses, label, color)
            curve(right, [step * link.seconds for step in steps], losses, label, color)
        left.set_xlabel("megabytes sent by each replica")
        right.set_xlabel(f"seconds, links of {MEGABITS} Mbit/s")
        left.set_ylabel("validation loss (nats per byte)")
        left.set_ylim(1.6, 2.6)
        left.set_xlim(0, 150)
        right.set_xlim(0, 220)
        right.legend()
        return Plot(figure)
