"""Parameters of tests of which `make test` takes some, and `make test-long` the rest."""

from collections.abc import Collection, Iterable, Mapping
from itertools import product
from typing import Any

import pytest


def some_of(values: Iterable[Any], short: Collection[Any]) -> list[Any]:
    """All values, by their str(); those that are not among the short ones are long."""
    return [pytest.param(value, id=str(value), marks=() if value in short else pytest.mark.long) for value in values]


def all_but(values: Iterable[Any], long: Collection[Any]) -> list[Any]:
    """All values, by their str(), of which these are long."""
    return some_of(values := list(values), [value for value in values if value not in long])


def grid(*axes: Mapping[str, Any], long: Collection[str] = ()) -> list[Any]:
    """All combinations of the axes' values, each axis by the names that its values have in the names of the tests.

    Those of `make test` have each value of the first axis once, with the values of the others in turn.

    Args:
        long: names of the first axis that `make test` leaves out.
    """
    cases = []
    for combination in product(*(enumerate(axis.items()) for axis in axes)):
        (number, (first, _)), *others = combination
        in_turn, turns = first not in long, number
        for axis, (index, _) in zip(axes[1:], others, strict=True):
            in_turn = in_turn and index == turns % len(axis)
            turns //= len(axis)
        values = [value for _, (_, value) in combination]
        name = "-".join(name for _, (name, _) in combination)
        cases.append(pytest.param(*values, id=name, marks=() if in_turn else pytest.mark.long))
    return cases
