"""Both trainings as a picture, if matplotlib is installed."""

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from torchdion.demonstration.outcome import Curve

CREATOR = "python -m torchdion demo"
"""What its pictures say of themselves; a file without it is somebody's, and is left alone."""


def refused(path: Path) -> str:
    """Why no picture can be written there, as the end of a sentence; empty if one can."""
    if path.suffix != ".svg":
        return f"must end in .svg, got {path}"
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        return f"must be in a folder that can be written to, got {path}"
    if path.exists() and not (path.is_file() and CREATOR in path.read_text(encoding="utf-8", errors="ignore")):
        return f"must not be a file that the demo has not drawn, got {path}"
    return ""


def draw(curves: Sequence[Curve], unit: str, path: Path) -> str:
    """Draws the validation losses against steps; says where the picture is, or what it needs."""
    if find_spec("matplotlib") is None:
        return "A picture of both needs matplotlib: pip install matplotlib."
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context("torchdion.figures"):
        figure = Figure(figsize=(7, 4.2))
        panel = figure.subplots()
        for curve in curves:
            label = f"{curve.title} ({curve.final:.3f})"
            panel.plot(list(curve.losses), list(curve.losses.values()), marker="o", label=label)
        panel.set_xlabel("step")
        panel.set_ylabel(f"validation loss ({unit})")
        panel.legend()
        figure.savefig(path, metadata={"Creator": CREATOR, "Date": None})
    return f"Both losses as a picture: {path}"
