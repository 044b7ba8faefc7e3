"""What the figures of a study have in common: colours, panels, labels, and what they are drawn from."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure as Canvas

from comparison import links
from comparison.cells import Setting
from comparison.intervals import Mean
from comparison.step_times import StepTime, Timed
from comparison.study import Contender, Part, Study
from comparison.summary import Group, Row

# Colours that people with any colour vision tell apart (Okabe and Ito), then more, for studies of many contenders.
PALETTE = (
    "#0072B2", "#E69F00", "#D55E00", "#CC79A7", "#009E73", "#56B4E9", "#000000", "#8C564B", "#7F7F7F", "#9467BD",
    "#BCBD22", "#17BECF", "#E377C2", "#6B4C9A", "#396AB1", "#3E9651", "#922B21", "#948B3D",
)  # fmt: skip
MARKERS = "os^Dv<>pPX*"
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))


@dataclass(frozen=True)
class Figure:
    path: Path
    caption: str
    alt: str


@dataclass(frozen=True)
class Look:
    color: tuple[float, float, float]
    marker: str
    dashes: Any

    @property
    def of_line(self) -> dict[str, Any]:
        return {"color": self.color, "marker": self.marker, "linestyle": self.dashes}


class Looks:
    """A colour for each family of contenders, lighter and with other dashes for later ones; the same in all figures."""

    def __init__(self, study: Study) -> None:
        families = list(dict.fromkeys(contender.family for contender in study.contenders.values()))
        self._of: dict[str, Look] = {}
        for number, family in enumerate(families):
            members = [contender for contender in study.contenders.values() if contender.family == family]
            for index, contender in enumerate(members):
                color = _lightened(PALETTE[number % len(PALETTE)], 0.55 * index / max(1, len(members) - 1))
                self._of[contender.name] = Look(color, MARKERS[number % len(MARKERS)], DASHES[index % len(DASHES)])

    def __getitem__(self, name: str) -> Look:
        return self._of[name]


def _lightened(color: str, by: float) -> tuple[float, float, float]:
    """Mixed with white."""
    red, green, blue = (part + (1 - part) * by for part in to_rgb(color))
    return red, green, blue


@dataclass(frozen=True)
class Drawing:
    """What a part's figures are drawn from."""

    study: Study
    part: Part
    groups: Sequence[Group]
    steps: Mapping[Timed, StepTime]
    links: Sequence[links.LinkTime]
    looks: Looks
    folder: Path

    def save(self, canvas: Canvas, kind: str, caption: str, alt: str) -> Figure:
        path = self.folder / f"{self.part.name}-{kind}.svg"
        canvas.savefig(path, metadata={"Date": None})
        return Figure(path, caption, alt)

    @property
    def rows(self) -> list[Row]:
        return [row for group in self.groups for row in group]

    @property
    def contenders(self) -> list[Contender]:
        present = {row.name for row in self.rows}
        return [contender for contender in self.part.contenders if contender.name in present]

    @property
    def loss(self) -> str:
        """The label of an axis of losses."""
        return f"validation loss (nats per {self.study.token})"

    def where(self, of: Group | Setting) -> str:
        """What a panel is of: those of width and batch that vary in the part, both if neither does."""
        part = self.part
        words = [f"width {of.width}"] if len(part.widths) > 1 or len(part.batches) == 1 else []
        if len(part.batches) > 1 or len(part.widths) == 1:
            words.append(f"{of.batch / 1024:g}K tokens a batch")
        return ", ".join(words)


def panels_of(count: int, height: float, share: bool = False) -> tuple[Canvas, list[Axes]]:
    canvas = Canvas(figsize=(max(6.0, 3.7 * count), height))
    return canvas, list(canvas.subplots(1, count, squeeze=False, sharey=share)[0])


def most_seeds(rows: Sequence[Row]) -> int:
    return max(len(row.runs) for row in rows)


def error_bar(panel: Axes, found: Mean, y: float, look: Look) -> None:
    """A mean with its interval, across."""
    if math.isfinite(found.value):
        panel.errorbar(
            found.value, y, xerr=found.bar, color=look.color, marker=look.marker, capsize=3, linestyle="none"
        )


def curve(panel: Axes, x: Sequence[float], means: Sequence[Mean], look: Look, label: str) -> None:
    """Means with their intervals."""
    bars = [found.bar for found in means]
    panel.errorbar(x, [found.value for found in means], yerr=bars, capsize=3, label=label, **look.of_line)
