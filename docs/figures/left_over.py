"""The singular values of updates of one gradient: Dion's, with its residual in both forms, and Muon's."""

import math

import torch
from error_feedback import Plot
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor
from torch.optim import Optimizer

import torchdion
from torchdion.options import Residual

SIZE, RANK, LAST = 64, 16, 0.01
"""Rows and columns, the rank, and the smallest singular value of the gradient, whose largest is 1."""
WARM = 12
"""Steps on the same gradient before the one that is drawn."""
FORMS: dict[str, Residual | None] = {"Dion": None, 'residual="scaled"': "scaled", 'residual="sign"': "sign"}


def gradient() -> Tensor:
    draw = torch.Generator().manual_seed(0)
    U, V = (torch.linalg.qr(torch.randn(SIZE, SIZE, generator=draw, dtype=torch.float64)).Q for _ in range(2))
    drawn: Tensor = U * torch.logspace(0, math.log10(LAST), SIZE, dtype=torch.float64) @ V.mT
    return drawn


def last_step(optimizer: Optimizer, weight: torch.nn.Parameter) -> list[float]:
    """The singular values of its update, at a rate of 1."""
    before = weight.detach()
    for _ in range(WARM + 1):
        before = weight.detach().clone()
        weight.grad = gradient()
        optimizer.step()
    values: list[float] = torch.linalg.svdvals(before - weight.detach()).tolist()
    return values


def update(residual: Residual | None) -> list[float]:
    weight = torch.nn.Parameter(torch.zeros(SIZE, SIZE, dtype=torch.float64))
    optimizer = torchdion.Dion(
        [weight], lr=1.0, mu=0.0, rank_fraction=RANK / SIZE, weight_decay=0.0, error_feedback=False, residual=residual
    )
    return last_step(optimizer, weight)


def of_muon() -> list[float]:
    weight = torch.nn.Parameter(torch.zeros(SIZE, SIZE, dtype=torch.float64))
    return last_step(torchdion.Muon([weight], lr=1.0, mu=0.0, weight_decay=0.0), weight)


def panel(axes: Axes, title: str, values: list[float]) -> None:
    axes.plot(range(1, SIZE + 1), values)
    axes.axvline(RANK, linewidth=0.8, linestyle=":")
    axes.set_title(title)
    axes.set_xlabel("singular value")


def drawing() -> Plot:
    with style.context("torchdion.figures"):
        figure = Figure(figsize=(8.6, 2.9))
        panels = figure.subplots(1, 4, sharey=True)
        for axes, (title, residual) in zip(panels, FORMS.items(), strict=False):
            panel(axes, title, update(residual))
        panel(panels[-1], "Muon", of_muon())
        panels[0].set_ylabel("its size in the update")
        panels[0].annotate("r", (RANK + 2, 1.2))
        return Plot(figure)
