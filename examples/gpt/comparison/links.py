"""Times of training steps over links of limited rates, as benchmarks/study_links.py measures them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import log
from errors import Problem

from comparison.intervals import Mean
from comparison.step_times import Timed, timed
from comparison.summary import Row

NAME = "links.jsonl"


@dataclass(frozen=True)
class LinkTime:
    timed: Timed
    part: str
    contender: str
    ranks: int
    megabits: float  # per second and direction, of each rank's link
    seconds: float  # of a step
    computation: float  # the step at full speed
    megabytes: float  # that a rank's link carried away
    planned_megabytes: float | None  # by torchdion.plan
    measured_megabits: float  # what a plain all-reduce reached

    @property
    def sent(self) -> float:
        """Megabytes, as planned where the plan knows."""
        return self.megabytes if self.planned_megabytes is None else self.planned_megabytes

    @property
    def modelled(self) -> tuple[float, float]:
        """The step by the plan's model of the link: as computation or sending takes longer, and as both add up."""
        sending = 8 * self.sent / self.measured_megabits
        return max(self.computation, sending), self.computation + sending


@dataclass(frozen=True)
class ToTarget:
    link: LinkTime
    seconds: Mean
    megabytes: Mean  # sent by a rank


def read(folder: Path) -> list[LinkTime]:
    path = folder / NAME
    try:
        return [LinkTime(**row) for row in log.read(path)] if path.exists() else []
    except TypeError as error:
        raise Problem(f"{path} holds a row that is no time of a step over a link") from error


def to_target(times: Sequence[LinkTime], rows: Sequence[Row]) -> list[ToTarget]:
    """Of the rows whose part has both a target and measured links."""
    return [
        ToTarget(link, row.mean.times(link.seconds), row.mean.times(link.sent))
        for row in rows
        for link in times
        if row.target is not None and link.part == row.setting.part.name and link.timed == timed(row.setting)
    ]


def rate_words(megabits: float) -> str:
    return f"{megabits / 1000:g} Gbit/s" if megabits >= 1000 else f"{megabits:g} Mbit/s"
