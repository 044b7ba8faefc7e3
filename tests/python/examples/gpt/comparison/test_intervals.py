"""examples/gpt/comparison/intervals.py: Student's intervals, Tukey's of differences, no ranking where they overlap."""

import math
from itertools import combinations

import numpy as np
import pytest
from comparison.intervals import Comparison, Mean, change, mean
from scipy import stats


def test_the_interval_of_a_mean_is_students() -> None:
    values = [1.3, 1.5, 1.45, 1.2]
    found = mean(values)
    expected = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert found.value - found.half == pytest.approx(expected.low)
    assert found.value + found.half == pytest.approx(expected.high)


def test_of_two_contenders_the_interval_is_the_paired_t_tests() -> None:
    comparison = Comparison({"a": {0: 1.0, 1: 2.0, 2: 3.1}, "b": {2: 3.0, 1: 1.8, 0: 0.9}})
    found = comparison.difference("a", "b")
    expected = stats.ttest_rel([1.0, 2.0, 3.1], [0.9, 1.8, 3.0]).confidence_interval(0.95)
    assert (found.value - found.half, found.value + found.half) == pytest.approx((expected.low, expected.high))


def test_equal_contenders_are_ranked_in_one_table_of_twenty() -> None:
    draw = np.random.default_rng(0)
    false = 0
    for _ in range(1000):
        losses = draw.normal(size=(8, 3)) + draw.normal(size=3) * 10  # seeds differ far more than contenders
        comparison = Comparison({str(name): dict(enumerate(row)) for name, row in enumerate(losses)})
        pairs = combinations(comparison.values, 2)
        false += any(comparison.is_below(a, b) or comparison.is_below(b, a) for a, b in pairs)
    assert false / 1000 == pytest.approx(0.05, abs=0.02)


def test_of_two_contenders_the_change_of_their_difference_is_welchs_t_test() -> None:
    before = {"a": {0: 1.0, 1: 2.0, 2: 3.1, 3: 2.2}, "b": {0: 0.9, 1: 1.8, 2: 3.0, 3: 2.3}}
    after = {"a": {0: 0.5, 1: 0.7, 2: 0.55}, "b": {0: 0.1, 1: 0.4, 2: 0.12}}
    found = change(Comparison(before), Comparison(after), "a", "b")
    differences = [[each["a"][seed] - each["b"][seed] for seed in each["a"]] for each in (after, before)]
    expected = stats.ttest_ind(*differences, equal_var=False).confidence_interval(0.95)
    assert (found.value - found.half, found.value + found.half) == pytest.approx((expected.low, expected.high))


def test_of_eight_changes_that_are_not_there_one_is_found_in_fewer_than_one_table_of_twenty() -> None:
    draw = np.random.default_rng(2)
    names = [str(name) for name in range(9)]
    false = 0
    for _ in range(1000):
        tables = [draw.normal(size=(9, seeds)) * deviation for seeds, deviation in ((6, 1.0), (3, 0.3))]
        before, after = (Comparison({name: dict(enumerate(row)) for name, row in zip(names, table, strict=True)})
                         for table in tables)  # fmt: skip
        found = [change(before, after, name, "0", 8) for name in names[1:]]
        false += any(abs(each.value) > each.half for each in found)
    assert 0.01 < false / 1000 < 0.06


def test_a_change_is_unknown_where_nothing_varies_that_could_be_measured() -> None:
    one, two = Comparison({"a": {0: 1.0}, "b": {0: 2.0}}), Comparison({"a": {0: 1.0, 1: 2.0}, "b": {0: 2.5, 1: 3.1}})
    assert change(one, two, "b", "a") == Mean(pytest.approx(0.3), math.inf)
    assert math.isnan(change(two, two, "b", "c").value)


def test_differences_that_are_there_are_found_beside_large_differences_of_seeds() -> None:
    draw = np.random.default_rng(1)
    losses = draw.normal(size=(8, 3)) * 0.01 + draw.normal(size=3) + np.arange(8)[:, None] * 0.1
    comparison = Comparison({str(name): dict(enumerate(row)) for name, row in enumerate(losses)})
    assert comparison.places == {str(name): (name + 1, name + 1) for name in range(8)}


def test_one_value_has_no_interval_and_none_has_no_mean() -> None:
    assert (mean([2.0]).value, mean([2.0]).half) == (2.0, math.inf)
    assert math.isnan(mean([]).value)
    assert mean([1.0, math.inf]).value == math.inf


def test_words_have_no_negative_zero() -> None:
    assert Mean(-0.0004, 0.02).words(3) == "0.000 ± 0.020"
    assert Mean(-0.0006, math.inf).words(3) == "-0.001"


NEAR = {"near": {1: 1.0, 2: 1.1, 3: 0.9}, "nearly": {1: 1.01, 2: 1.05, 3: 0.93}, "far": {1: 3.0, 2: 3.1, 3: 2.9}}


def test_contenders_that_intervals_do_not_tell_apart_share_places() -> None:
    assert Comparison(NEAR).places == {"near": (1, 2), "nearly": (1, 2), "far": (3, 3)}


def test_what_is_infinite_for_every_seed_is_last_and_for_some_is_anywhere() -> None:
    never, sometimes = {1: math.inf, 2: math.inf, 3: math.inf}, {1: 1.0, 2: math.inf, 3: 1.0}
    places = Comparison({**NEAR, "never": never, "sometimes": sometimes}).places
    assert places == {"near": (1, 3), "nearly": (1, 3), "far": (3, 4), "never": (4, 5), "sometimes": (1, 5)}


def test_one_seed_ranks_nothing() -> None:
    assert Comparison({"a": {1: 1.0}, "b": {1: 2.0}, "c": {1: math.inf}}).places == dict.fromkeys("abc", (1, 3))


def test_a_contender_that_lacks_a_seed_is_not_ranked_yet() -> None:
    places = Comparison({**NEAR, "late": {1: 0.1, 2: 0.1}}).places
    assert places["late"] == (1, 4)
    assert places["far"] == (3, 4)


def test_contenders_are_sorted_by_what_is_compared_and_those_that_lack_a_seed_are_last() -> None:
    comparison = Comparison({"late": {1: 0.1}, "b": {1: 1.0, 2: 1.2}, "a": {1: 0.9, 2: 1.0}})
    assert sorted(comparison.values, key=comparison.order) == ["a", "b", "late"]
    bounded = Comparison({"late": {1: 0.1}, "least": {1: 0.5, 2: 0.5}, "a": {1: 0.9, 2: 1.0}}, at_least={"least"})
    assert sorted(bounded.values, key=bounded.order) == ["a", "least", "late"]


def test_what_is_known_to_be_no_smaller_is_ranked_by_that() -> None:
    bounded = {"bounded": {1: 3.0, 2: 2.2, 3: 3.0}}  # by the values that stand for those that are not known
    places = Comparison({**NEAR, **bounded}, at_least={"bounded"}).places
    assert places == {"near": (1, 2), "nearly": (1, 2), "far": (3, 4), "bounded": (3, 4)}
    comparison = Comparison({**NEAR, "lower": {1: 0.1, 2: 0.2, 3: 0.1}}, at_least={"lower"})
    assert comparison.places["lower"] == (1, 4)
    assert math.isnan(comparison.difference("far", "lower").value)


def test_beside_what_is_known_alone_its_own_interval_decides() -> None:
    own = {1: math.log(395), 2: math.log(397), 3: math.log(399)}
    limit = dict.fromkeys(own, math.log(400))
    assert Comparison({"a": own, "b": limit}, at_least={"b"}).places == {"a": (1, 2), "b": (1, 2)}
    limit = dict.fromkeys(own, math.log(410))
    assert Comparison({"a": own, "b": limit}, at_least={"b"}).places == {"a": (1, 1), "b": (2, 2)}


def test_a_bound_widens_intervals_as_one_contender_more() -> None:
    bounded = Comparison({**NEAR, "bounded": {1: 9.0, 2: 9.0, 3: 9.0}}, at_least={"bounded"})
    quantiles = [stats.studentized_range.ppf(0.95, contenders, 4) for contenders in (4, 3)]
    assert bounded.half / Comparison(NEAR).half == pytest.approx(quantiles[0] / quantiles[1])


def test_a_mean_in_words_has_its_interval() -> None:
    assert (Mean(1.5, 0.25).words(3), Mean(1.5, math.inf).words(1)) == ("1.500 ± 0.250", "1.5")
    assert Mean(math.inf, math.inf).words(3) == "–"
    assert Mean(1.5, 0.25).times(2) == Mean(3.0, 0.5)
