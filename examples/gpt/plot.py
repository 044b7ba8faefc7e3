"""Loss curves of one or several runs: `python plot.py runs/tiny-dion runs/tiny-torch_adamw -o loss.png`."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import log
import numpy as np
from errors import Problem, run_script, writing
from flags import OneSentenceParser
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Values: TypeAlias = NDArray[np.float64]

# Averaged over this share of the run, a step's loss being that of a single batch.
SMOOTHED_SHARE = 0.02


class Curves:
    """One run's losses as read from its log."""

    def __init__(self, folder: Path) -> None:
        records = log.read(folder / log.NAME)
        self.name = folder.name or str(folder)
        self.train = [record for record in records if record["kind"] == "train"]
        self.validation = [record for record in records if record["kind"] == "validation"]
        recipes = [record["recipe"] for record in records if record["kind"] == "run"]
        if not self.train or not recipes:
            raise Problem(f"{folder} has no training steps to plot")
        self.recipe = recipes[0]


def column(records: list[dict[str, Any]], name: str) -> Values:
    return np.array([record[name] for record in records], dtype=np.float64)


def smoothed(values: Values) -> Values:
    """A running mean over the last SMOOTHED_SHARE of the steps; shorter at the start."""
    width = max(1, round(SMOOTHED_SHARE * len(values)))
    sums = np.cumsum(np.insert(values, 0, 0.0))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - width)
    means: Values = (sums[ends] - sums[starts]) / (ends - starts)
    return means


def loss_unit(runs: list[Curves]) -> str:
    """Bytes and tokens are different units, which a plot of both cannot tell apart."""
    return "nats per byte" if all(run.recipe["vocab"] == 256 for run in runs) else "nats per token"


def loss_limits(runs: list[Curves]) -> tuple[float, float]:
    """The range after the first tenth of each run, whose plunge would flatten the rest."""
    losses = [column(run.train, "loss") for run in runs]
    late = np.concatenate([loss[len(loss) // 10 :] for loss in losses])
    seen = np.concatenate([late, *(column(run.validation, "loss") for run in runs)])
    margin = 0.05 * max(float(np.ptp(seen)), 0.1)
    return float(seen.min()) - margin, float(seen.max()) + margin


def draw_run(panel: "Axes", run: Curves, against: str, color: str) -> None:
    """Training as a thin line, validation with dots."""
    panel.plot(
        column(run.train, against),
        smoothed(column(run.train, "loss")),
        color=color,
        linewidth=1,
        alpha=0.6,
        label=f"{run.name}, training",
    )
    if run.validation:
        panel.plot(
            column(run.validation, against),
            column(run.validation, "loss"),
            color=color,
            marker="o",
            linewidth=2,
            label=f"{run.name}, validation ({run.validation[-1]['loss']:.3f})",
        )


def draw(runs: list[Curves], output: Path) -> None:
    """Two panels, against steps and against seconds.

    Args:
        output: a .png or .svg file.

    Raises:
        Problem: matplotlib is not installed, or the file cannot be written.
    """
    if find_spec("matplotlib") is None:
        raise Problem("a plot needs the package matplotlib; `pip install matplotlib`")
    from matplotlib import style  # which takes a second

    with style.context("torchdion.figures"), writing(output):
        _figure(runs).savefig(output, dpi=150, metadata={"Date": None} if output.suffix == ".svg" else None)


def _figure(runs: list[Curves]) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5))
    by_step, by_time = figure.subplots(1, 2, sharey=True)
    for number, run in enumerate(runs):
        color = f"C{number % 10}"
        draw_run(by_step, run, "step", color)
        draw_run(by_time, run, "seconds", color)
    by_step.set_xlabel("optimizer step")
    by_time.set_xlabel("training time (s, without validation)")
    by_step.set_ylabel(f"loss ({loss_unit(runs)})")
    by_step.set_ylim(*loss_limits(runs))
    by_step.legend()
    return figure


def main(arguments: list[str]) -> int:
    parser = OneSentenceParser(prog="plot.py", description="Plot the losses of one or several runs.")
    parser.add_argument("runs", type=Path, nargs="+", help="folders of runs")
    parser.add_argument("-o", "--output", type=Path, default=Path("loss.png"), help="PNG or SVG file (loss.png)")
    given = parser.parse_args(arguments)
    if given.output.suffix not in (".png", ".svg"):
        raise Problem(f"--output must end in .png or .svg, got {str(given.output)!r}")
    draw([Curves(folder) for folder in given.runs], given.output)
    print(given.output)
    return 0


if __name__ == "__main__":
    run_script(main)
