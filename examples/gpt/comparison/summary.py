"""A part's results at each contender's best rate: what figures and tables show."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from comparison import sweep
from comparison.cells import Setting
from comparison.intervals import Mean, difference, mean, places
from comparison.results import Result, Results
from comparison.study import Part, Study


@dataclass(frozen=True, eq=False)
class Row:
    """A setting at its best rate."""

    setting: Setting
    rates: Sequence[float]  # tried, in order
    scores: Mapping[float, sweep.Score]  # by rate, of the tuning seeds
    rate: float
    runs: Mapping[int, Result]  # by seed
    place: tuple[int, int] = (0, 0)  # the best and the worst one that intervals leave open

    @property
    def name(self) -> str:
        return self.setting.contender.name

    @property
    def is_bracketed(self) -> bool:
        return sweep.is_bracketed(self.rates, self.rate)

    @property
    def target(self) -> float | None:
        return self.setting.part.until_loss

    def value_of(self, result: Result) -> float:
        """What the part measures: steps to its target, or else the last loss."""
        return result.loss if self.target is None else result.steps_to(self.target)

    @cached_property
    def values(self) -> dict[int, float]:
        """By seed."""
        return {seed: self.value_of(result) for seed, result in self.runs.items()}

    @cached_property
    def mean(self) -> Mean:
        return mean(list(self.values.values()))

    def over(self, other: "Row") -> Mean:
        """By how much it is above another one, paired by seeds."""
        return difference(self.values, other.values)


def groups(study: Study, part: Part, results: Results) -> dict[tuple[int, int], list[Row]]:
    """Rows by width and batch, in ascending order of both; in each the lowest mean first."""
    tried = sweep.tried(study, part, results)
    rows = [row for setting, rates in tried.items() if (row := _row(setting, rates, results)) is not None]
    rows.sort(key=lambda row: (row.setting.width, row.setting.batch, row.mean.value))
    found = {}
    for key, alike in groupby(rows, key=lambda row: (row.setting.width, row.setting.batch)):
        found[key] = _placed(list(alike))
    return found


def _row(setting: Setting, rates: Sequence[float], results: Results) -> Row | None:
    rate = sweep.best_rate(setting, rates, results)
    if rate is None:
        return None
    scores = {each: found for each in rates if (found := sweep.score(setting, each, results)) is not None}
    runs = {seed: result for seed in range(setting.part.seeds)
            if (result := results.get(setting.cell(rate, seed))) is not None}  # fmt: skip
    return Row(setting, rates, scores, rate, runs)


def _placed(rows: list[Row]) -> list[Row]:
    found = places({row.name: row.values for row in rows})
    return [Row(row.setting, row.rates, row.scores, row.rate, row.runs, found[row.name]) for row in rows]
