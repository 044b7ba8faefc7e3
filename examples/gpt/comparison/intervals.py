"""Means over seeds with their 95% confidence intervals, and what they tell apart.

Trainings of one seed begin with the same weights and read the same batches, so that contenders are compared by the
differences within seeds, which vary less than losses do.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Mean:
    """A mean, and half of its confidence interval: infinite of one value."""

    value: float
    half: float
    count: int

    def times(self, factor: float) -> "Mean":
        return Mean(self.value * factor, self.half * factor, self.count)

    def __str__(self) -> str:
        return f"{self.value:.3f}" + (f" ± {self.half:.3f}" if math.isfinite(self.half) else "")


def mean(values: Sequence[float]) -> Mean:
    """By Student's distribution; a value that is infinite makes the mean so."""
    if not values:
        return Mean(math.nan, math.inf, 0)
    if not all(map(math.isfinite, values)):
        return Mean(math.inf, math.inf, len(values))
    if len(values) == 1:
        return Mean(values[0], math.inf, 1)
    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1))
    deviation = float(np.std(values, ddof=1))
    return Mean(float(np.mean(values)), quantile * deviation / math.sqrt(len(values)), len(values))


def difference(own: Mapping[int, float], other: Mapping[int, float]) -> Mean:
    """Of values by seed, `own` less `other`, over the seeds that both have."""
    seeds = sorted(own.keys() & other.keys())
    pairs = [(own[seed], other[seed]) for seed in seeds]
    if any(math.isinf(value) for pair in pairs for value in pair):
        infinite = math.inf if any(math.isinf(a) for a, _ in pairs) else -math.inf
        return Mean(math.nan if all(math.isinf(v) for pair in pairs for v in pair) else infinite, 0.0, len(pairs))
    return mean([a - b for a, b in pairs])


def ratio(own: Mapping[int, float], other: Mapping[int, float]) -> Mean:
    """Of values by seed, `own` over `other`, over the seeds that both have."""
    return mean([own[seed] / other[seed] for seed in sorted(own.keys() & other.keys())])


def is_below(own: Mapping[int, float], other: Mapping[int, float]) -> bool:
    """Whether the interval of the difference lies below zero."""
    found = difference(own, other)
    return found.value + found.half < 0


def places(values: Mapping[str, Mapping[int, float]]) -> dict[str, tuple[int, int]]:
    """The best and the worst place that each may have, 1 the lowest: contenders not told apart share places.

    Args:
        values: by name and seed, the smaller the better.
    """
    names = list(values)
    below = {(a, b) for a in names for b in names if a != b and is_below(values[a], values[b])}
    return {
        name: (1 + sum((other, name) in below for other in names),
               len(names) - sum((name, other) in below for other in names))
        for name in names
    }  # fmt: skip
