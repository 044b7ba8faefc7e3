"""A picture of the steps: a panel for each list of matrices."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_lists import LISTS, RANKS, STATES
from rows import Row, one, select

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot(rows: Sequence[Row], path: Path) -> None:
    """A panel for each list, a group of bars for each rank, and the roofline across its Dion's."""
    from matplotlib import style

    timed = select(rows, kind="step")
    names = [name for name in LISTS if any(row["list"] == name for row in timed)]
    if not names:
        print("steps_plot.py: no steps to draw", file=sys.stderr)
        return
    with style.context("torchdion.figures"):
        _figure(timed, names).savefig(path, dpi=150)


def _figure(timed: Sequence[Row], names: Sequence[str]) -> "Figure":
    from matplotlib.figure import Figure

    bars = {
        "Dion": ("Dion", "eager"),
        "Dion, CUDA graph": ("Dion", "graph"),
        "torch.optim.AdamW (fused)": ("AdamW", "eager"),
    }
    bars |= {"torch.optim.Muon": ("Muon", "eager"), "microsoft/dion": ("dion package", "eager")}
    figure = Figure(figsize=(3.5 * len(names) + 1.5, 4.5))
    for panel, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for place, (label, (optimizer, mode)) in enumerate(bars.items()):
            heights = []
            for rank in RANKS:
                own = {"rank": rank, "state": next(iter(STATES))} if optimizer in ("Dion", "dion package") else {}
                precision = {"precision": "high"} if optimizer == "Dion" else {}
                labels = {"list": name, "optimizer": optimizer, "mode": mode, **own, **precision}
                heights.append(one(timed, **labels).get("ms", float("nan")))
            positions = [index + 0.16 * (place - 2) for index in range(len(RANKS))]
            drawn = panel.bar(positions, heights, 0.16, color=f"C{place}", label=label)
            panel.bar_label(drawn, ["" if height != height else f"{height:.3g}" for height in heights], fontsize=7)
        for index, rank in enumerate(RANKS):
            labels = {"list": name, "optimizer": "Dion", "rank": rank, "state": "FP32", "precision": "high"}
            least = one(timed, **labels, mode="eager").get("least_ms")
            if least:
                panel.hlines(
                    least, index - 0.4, index - 0.08, colors="k", label="roofline of Dion" if index == 0 else None
                )
        panel.set_xticks(range(len(RANKS)), [f"r = {rank}" for rank in RANKS])
        panel.set_yscale("log")
        panel.set_title(name.upper())
    panels = figure.axes
    panels[0].set_ylabel("milliseconds per step")
    handles = {
        label: handle for panel in panels for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3)
    return figure
