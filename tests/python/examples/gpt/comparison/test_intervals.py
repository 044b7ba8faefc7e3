"""examples/gpt/comparison/intervals.py: Student's intervals, and no ranking where they overlap."""

import math

import numpy as np
import pytest
from comparison.intervals import difference, mean, places
from scipy import stats


def test_the_interval_is_students() -> None:
    values = [1.3, 1.5, 1.45, 1.2]
    found = mean(values)
    expected = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert found.value - found.half == pytest.approx(expected.low)
    assert found.value + found.half == pytest.approx(expected.high)


def test_differences_are_paired_by_seed() -> None:
    own, other = {0: 1.0, 1: 2.0, 2: 3.1}, {2: 3.0, 1: 1.8, 0: 0.9, 7: 100.0}
    found = difference(own, other)
    expected = stats.ttest_rel([1.0, 2.0, 3.1], [0.9, 1.8, 3.0]).confidence_interval(0.95)
    assert (found.value - found.half, found.value + found.half) == pytest.approx((expected.low, expected.high))


def test_an_interval_covers_the_mean_as_often_as_it_says() -> None:
    draws = np.random.default_rng(0).normal(size=(4000, 3))
    covered = [abs(found.value) <= found.half for found in (mean(list(row)) for row in draws)]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.012)


def test_one_value_has_no_interval_and_none_has_no_mean() -> None:
    assert (mean([2.0]).value, mean([2.0]).half) == (2.0, math.inf)
    assert math.isnan(mean([]).value)
    assert mean([1.0, math.inf]).value == math.inf


def test_contenders_that_intervals_do_not_tell_apart_share_places() -> None:
    values = {
        "far": {0: 3.0, 1: 3.1, 2: 2.9},
        "near": {0: 1.0, 1: 1.1, 2: 0.9},
        "nearly": {0: 1.01, 1: 1.05, 2: 0.93},
        "never": {0: math.inf, 1: math.inf, 2: math.inf},
    }
    assert places(values) == {"near": (1, 2), "nearly": (1, 2), "far": (3, 3), "never": (4, 4)}


def test_one_seed_ranks_nothing() -> None:
    assert places({"a": {0: 1.0}, "b": {0: 2.0}}) == {"a": (1, 2), "b": (1, 2)}
