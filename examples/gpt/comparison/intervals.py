"""Means over seeds with their 95% confidence intervals, and which contenders they tell apart.

Trainings of one seed begin with the same weights and read the same batches, so that contenders are compared within
seeds, where they vary less: a randomized block design with seeds as blocks. Of k contenders there are k (k − 1) / 2
differences, and Tukey's intervals hold for all of them at once; of two contenders they are those of the paired t-test.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
Values = Mapping[int, float]  # by seed


@dataclass(frozen=True)
class Mean:
    """A mean, and half of its confidence interval: infinite of one value."""

    value: float
    half: float

    @property
    def bar(self) -> float:
        """The half as an error bar: none where it is infinite."""
        return self.half if math.isfinite(self.half) else 0.0

    def times(self, factor: float) -> "Mean":
        return Mean(self.value * factor, self.half * factor)

    def words(self, digits: int) -> str:
        """1.471 ± 0.017; a dash where it is infinite."""
        if not math.isfinite(self.value):
            return "–"
        value = round(self.value, digits) + 0.0  # no negative zero
        return f"{value:.{digits}f}" + (f" ± {self.half:.{digits}f}" if math.isfinite(self.half) else "")


def mean(values: Sequence[float]) -> Mean:
    """By Student's distribution; a value that is infinite makes the mean so."""
    if not values:
        return Mean(math.nan, math.inf)
    if not all(map(math.isfinite, values)):
        return Mean(math.inf, math.inf)
    if len(values) == 1:
        return Mean(values[0], math.inf)
    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1))
    deviation = float(np.std(values, ddof=1))
    return Mean(float(np.mean(values)), quantile * deviation / math.sqrt(len(values)))


@cache
def _tukey(contenders: int, freedom: int) -> float:
    return float(stats.studentized_range.ppf(CONFIDENCE, contenders, freedom))


@dataclass(frozen=True, eq=False)
class Comparison:
    """Contenders by name, each with its values by seed, the smaller the better; they vary alike about their means.

    Some values of those named in `at_least` are only lower bounds.
    """

    values: Mapping[str, Values]
    at_least: Collection[str] = ()

    @cached_property
    def _seeds(self) -> list[int]:
        return sorted({seed for own in self.values.values() for seed in own})

    @cached_property
    def _finite(self) -> list[str]:
        """Those with a finite value for every seed."""
        return [name for name, own in self.values.items()
                if all(math.isfinite(own.get(seed, math.inf)) for seed in self._seeds)]  # fmt: skip

    @cached_property
    def _known(self) -> list[str]:
        """Those of them whose values are all known."""
        return [name for name in self._finite if name not in self.at_least]

    @cached_property
    def half(self) -> float:
        """Half of the interval of any difference of means; infinite where nothing varies that could be measured."""
        if not self.freedom:
            return math.inf
        return _tukey(len(self._finite), self.freedom) * math.sqrt(self.variance / len(self._seeds))

    @property
    def freedom(self) -> int:
        """The degrees of freedom of the variance; 0: nothing varies that could be measured."""
        return max(0, len(self._known) - 1) * max(0, len(self._seeds) - 1)

    @cached_property
    def variance(self) -> float:
        """Of a value about the means of its contender and of its seed."""
        table = np.array([[self.values[name][seed] for seed in self._seeds] for name in self._known])
        rest = table - table.mean(axis=1, keepdims=True) - table.mean(axis=0) + table.mean()
        return float((rest**2).sum()) / self.freedom

    @property
    def variance_of_difference(self) -> float:
        """Of the difference of two means."""
        return 2 * self.variance / len(self._seeds)

    def difference(self, own: str, other: str) -> Mean:
        """By how much the mean of `own` is above that of `other`; NaN where one is not known or lacks a seed."""
        if own not in self._known or other not in self._known:
            return Mean(math.nan, math.inf)
        return Mean(self._mean(own) - self._mean(other), self.half)

    def _mean(self, name: str) -> float:
        return float(np.mean(list(self.values[name].values())))

    def is_below(self, own: str, other: str) -> bool:
        """Whether the interval of the difference lies below zero.

        What has values that are not known is below nothing, and above what lies below its least mean. What is infinite
        for every seed is above all that is known, where there are two seeds or more; what is so for some alone is told
        apart from nothing.
        """
        if own not in self._known:
            return False
        if other in self._finite:
            # Of one that is known alone the interval is its own.
            half = self.half if len(self._known) > 1 else mean(list(self.values[own].values())).half
            return self._mean(own) + half < self._mean(other)
        never = self.values[other]
        return len(self._seeds) > 1 and len(never) == len(self._seeds) and all(map(math.isinf, never.values()))

    def order(self, name: str) -> tuple[bool, bool, float]:
        """By which contenders are sorted: first those that have every seed, then what is known, then the lowest."""
        own = self.values[name]
        return len(own) < len(self._seeds), name in self.at_least, math.fsum(own.values()) / len(own)

    @cached_property
    def places(self) -> dict[str, tuple[int, int]]:
        """The best and the worst place that each may have, 1 the lowest: those that are not told apart share places."""
        names = list(self.values)
        below = {(a, b) for a in names for b in names if a != b and self.is_below(a, b)}
        return {
            name: (1 + sum((other, name) in below for other in names),
                   len(names) - sum((name, other) in below for other in names))
            for name in names
        }  # fmt: skip


def change(before: Comparison, after: Comparison, own: str, other: str, count: int = 1) -> Mean:
    """By how much the difference of two contenders is greater in another comparison, by Welch's t-test.

    Of `count` such changes the intervals hold for all at once, by Bonferroni's inequality.
    """
    value = after.difference(own, other).value - before.difference(own, other).value
    if math.isnan(value) or not before.freedom or not after.freedom:
        return Mean(value, math.inf)
    shares = [(each.variance_of_difference, each.freedom) for each in (before, after)]
    variance = sum(share for share, _ in shares)
    if not variance:
        return Mean(value, 0.0)
    freedom = variance**2 / sum(share**2 / own_freedom for share, own_freedom in shares)
    quantile = float(stats.t.ppf(1 - (1 - CONFIDENCE) / (2 * count), freedom))
    return Mean(value, quantile * math.sqrt(variance))
