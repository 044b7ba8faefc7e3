"""How far weights have moved along each of five directions, with error feedback and without it, as Dion moves them."""

import io

import torch
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import torchdion

GRADIENT = (1.0, 0.8, 0.6, 0.45, 0.3)  # its singular values, the same at every step
RANK, STEPS, MU = 2, 60, 0.8


class Plot:
    """A figure of matplotlib's as a drawing."""

    def __init__(self, figure: Figure) -> None:
        self.figure = figure

    def svg(self) -> str:
        text = io.StringIO()
        self.figure.savefig(text, format="svg", metadata={"Date": None})
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def moved(error_feedback: bool) -> list[list[float]]:
    """[step][direction]: the length of the way so far."""
    size = len(GRADIENT)
    weight = torch.nn.Parameter(torch.zeros(size, size, dtype=torch.float64))
    optimizer = torchdion.Dion(
        [weight], lr=1.0, mu=MU, rank_fraction=RANK / size, weight_decay=0.0,
        error_feedback=error_feedback, factorization="svd",
    )  # fmt: skip
    way = []
    for _ in range(STEPS):
        weight.grad = torch.diag(torch.tensor(GRADIENT, dtype=torch.float64))
        optimizer.step()
        way.append((-weight.detach().diagonal()).tolist())
    return way


def panel(axes: Axes, title: str, way: list[list[float]]) -> None:
    for direction, length in enumerate(GRADIENT):
        axes.plot(range(1, STEPS + 1), [step[direction] for step in way], label=f"{length:g}")
    axes.set_title(title)
    axes.set_xlabel("step")


def drawing() -> Plot:
    with style.context("torchdion.figures"):
        figure = Figure(figsize=(8.6, 3.4))
        left, right = figure.subplots(1, 2, sharey=True)
        panel(left, "With error feedback", moved(True))
        panel(right, "Without", moved(False))
        left.set_ylabel("distance moved along a direction")
        left.legend(title="its singular value in the gradient")
        right.annotate("three directions, never chosen", (35, 1), (24, 12), arrowprops={"arrowstyle": "->"})
        return Plot(figure)
