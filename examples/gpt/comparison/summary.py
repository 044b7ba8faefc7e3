"""A part's results at each contender's best rate: what figures and tables show."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from comparison import sweep
from comparison.cells import Setting
from comparison.intervals import Comparison, Mean, change, mean
from comparison.results import Result, Results
from comparison.study import Part, Study


@dataclass(frozen=True, eq=False)
class Row:
    """A setting at its best rate."""

    setting: Setting
    scores: Mapping[float, sweep.Score]  # by rate, of the tuning seeds
    rate: float
    runs: Mapping[int, Result]  # by seed, without the tuning seeds

    @property
    def name(self) -> str:
        return self.setting.contender.name

    @property
    def is_bracketed(self) -> bool:
        return sweep.is_bracketed(sorted(self.scores), self.rate)

    @property
    def target(self) -> float | None:
        return self.setting.part.until_loss

    @cached_property
    def values(self) -> dict[int, float]:
        """What the part measures, by seed: steps to its target, or else the last loss."""
        return {seed: result.loss if self.target is None else result.steps_to(self.target)
                for seed, result in self.runs.items()}  # fmt: skip

    @property
    def compared(self) -> dict[int, float]:
        """Losses, or logarithms of steps, by seed; where the target was missed, those of all steps."""
        if self.target is None:
            return self.values
        return {seed: math.log(value if math.isfinite(value) else self.setting.steps)
                for seed, value in self.values.items()}  # fmt: skip

    @property
    def misses(self) -> bool:
        """Whether a seed missed the target, whose steps are not known then."""
        return self.target is not None and not all(map(math.isfinite, self.values.values()))

    @cached_property
    def mean(self) -> Mean:
        return mean(list(self.values.values()))

    @property
    def words(self) -> str:
        """The mean with its interval; where some seeds have no finite value, how many have."""
        finite = sum(map(math.isfinite, self.values.values()))
        if finite == len(self.values):
            return self.mean.words(3 if self.target is None else 0)
        if finite:
            return f"{finite} of {len(self.values)} seeds"
        return "diverged" if self.target is None else "not reached"


@dataclass(frozen=True, eq=False)
class Group:
    """Rows of one width and batch, the lowest first."""

    width: int
    batch: int
    rows: Sequence[Row]
    comparison: Comparison  # of losses, or of logarithms of steps, which vary in proportion

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)


def groups(study: Study, part: Part, results: Results) -> list[Group]:
    """In ascending order of width and batch; contenders appear once a seed by which rates were not chosen is there."""
    tried = sweep.tried(study, part, results)
    rows = [row for setting, rates in tried.items() if (row := _row(setting, rates, results)) is not None]
    rows.sort(key=lambda row: (row.setting.width, row.setting.batch))
    found = []
    for (width, batch), alike in groupby(rows, key=lambda row: (row.setting.width, row.setting.batch)):
        members = {row.name: row for row in alike}
        comparison = Comparison(
            {name: row.compared for name, row in members.items()}, {name for name, row in members.items() if row.misses}
        )
        found.append(Group(width, batch, [members[name] for name in sorted(members, key=comparison.order)], comparison))
    return found


def of_widths(groups: Sequence[Group]) -> list[Group]:
    """Those of the first batch."""
    return [group for group in groups if group.batch == groups[0].batch]


@dataclass(frozen=True, eq=False)
class Gap:
    """By how much a contender is above another, at several widths."""

    name: str
    by_width: Mapping[int, Mean]
    change: Mean  # from the least width to the greatest; NaN where it is not known at both


def gaps(groups: Sequence[Group], baseline: str) -> list[Gap]:
    """Those of one batch, of all contenders but the baseline; changes hold for all of them at once."""
    others = list(dict.fromkeys(row.name for group in groups for row in group if row.name != baseline))
    found = []
    for name in others:
        differences = {group: group.comparison.difference(name, baseline) for group in groups}
        ends = groups[0].comparison, groups[-1].comparison
        by_width = {group.width: gap for group, gap in differences.items() if math.isfinite(gap.value)}
        found.append(Gap(name, by_width, change(*ends, name, baseline, len(others))))
    return found


def _row(setting: Setting, rates: Sequence[float], results: Results) -> Row | None:
    rate = sweep.best_rate(setting, rates, results)
    if rate is None:
        return None
    scores = {each: found for each in rates if (found := sweep.score(setting, each, results)) is not None}
    runs = {seed: result for seed in setting.seeds
            if (result := results.get(setting.cell(rate, seed))) is not None}  # fmt: skip
    return Row(setting, scores, rate, runs) if runs else None
