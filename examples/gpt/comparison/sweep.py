"""Which learning rates a setting tries, and which cells that takes: a function of the results so far.

Every contender begins with as many rates. A grid whose best rate is at its edge grows there, until the best has a
neighbour on each side or `widen` rates have been added; the others of the same width and batch grow too, until all have
tried equally many. The seeds by which contenders are compared are trained at the best rate alone.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from comparison.cells import Cell, Setting, settings
from comparison.results import Results
from comparison.study import Part, Study


class Score(NamedTuple):
    """What a rate gave, the smaller the better: means over the tuning seeds."""

    misses: int  # seeds that missed the target, where there is one
    steps: float  # to the target, those of all of the training where it was missed; 0 where there is none
    loss: float  # the last one


def score(setting: Setting, rate: float, results: Results) -> Score | None:
    """None if a tuning seed is missing."""
    part = setting.part
    found = [results.get(setting.cell(rate, seed)) for seed in range(part.tuning_seeds)]
    known = [result for result in found if result is not None]
    if len(known) < part.tuning_seeds:
        return None
    steps = [0.0 if part.until_loss is None else result.steps_to(part.until_loss) for result in known]
    within = [count if math.isfinite(count) else float(setting.steps) for count in steps]
    misses = sum(map(math.isinf, steps))
    return Score(misses, *(math.fsum(each) / len(known) for each in (within, [result.loss for result in known])))


def tried_rates(setting: Setting, results: Results, at_least: int = 0) -> list[float]:
    """All rates of the setting, in order, those included that its results now call for."""
    rates = setting.rates
    factor = rates[1] / rates[0]
    most = len(rates) + setting.part.widen
    while True:
        scores = [score(setting, rate, results) for rate in rates]
        known = [each for each in scores if each is not None]
        if len(known) < len(scores):
            return rates
        best = known.index(min(known))
        at_edge = best in (0, len(rates) - 1) and len(rates) < most
        if not at_edge and len(rates) >= at_least:
            return rates
        below = best == 0 if at_edge else known[0] < known[-1]
        if below:
            rates.insert(0, rates[0] / factor)
        else:
            rates.append(rates[-1] * factor)


def best_rate(setting: Setting, rates: Sequence[float], results: Results) -> float | None:
    """Of those that have all tuning seeds; None if none has."""
    scores = {rate: each for rate in rates if (each := score(setting, rate, results)) is not None}
    return min(scores, key=lambda rate: scores[rate]) if scores else None


def is_bracketed(rates: Sequence[float], best: float) -> bool:
    return rates[0] < best < rates[-1]


def grids(study: Study, part: Part, results: Results) -> Iterator[dict[Setting, list[float]]]:
    """The rates of the settings of each width and batch."""
    for _, group in groupby(settings(study, part), key=lambda setting: (setting.width, setting.batch)):
        alike = list(group)
        count = 0
        while True:
            rates = {setting: tried_rates(setting, results, count) for setting in alike}
            most = max(len(each) for each in rates.values())
            if most == count:
                break
            count = most
        yield rates


def tried(study: Study, part: Part, results: Results) -> dict[Setting, list[float]]:
    """The rates of every setting of the part."""
    return {setting: rates for grid in grids(study, part, results) for setting, rates in grid.items()}


def tuning_cells(setting: Setting, rates: Sequence[float]) -> list[Cell]:
    return [setting.cell(rate, seed) for rate in rates for seed in range(setting.part.tuning_seeds)]


def tuning_cells_of(grid: Mapping[Setting, Sequence[float]]) -> list[Cell]:
    return [cell for setting, rates in grid.items() for cell in tuning_cells(setting, rates)]


def reported_cells(setting: Setting, rates: Sequence[float], best: float) -> list[Cell]:
    chosen = rates if setting.part.every_rate else [best]
    return [setting.cell(rate, seed) for rate in chosen for seed in setting.seeds]


def cells(study: Study, part: Part, results: Results) -> Iterator[Cell]:
    """All cells of the part as far as they are known: those by which rates are chosen, then the others.

    Where the best rate is not known yet, the middle of the grid stands for it.
    """
    later: list[Cell] = []
    for setting, rates in tried(study, part, results).items():
        yield from tuning_cells(setting, rates)
        later += reported_cells(setting, rates, best_rate(setting, rates, results) or rates[len(rates) // 2])
    yield from later


def growth(study: Study, part: Part, results: Results) -> list[Cell]:
    """What is trained beyond these if every grid that has not all of its results grows as far as it may, upwards."""
    found: list[Cell] = []
    for grid in grids(study, part, results):
        if all(cell in results for cell in tuning_cells_of(grid)):
            continue
        for setting, rates in grid.items():
            rate, factor = rates[-1], rates[1] / rates[0]
            for _ in range(len(setting.rates) + part.widen - len(rates)):
                rate *= factor
                found += tuning_cells(setting, [rate])
                if part.every_rate:
                    found += reported_cells(setting, [rate], rate)
    return found


def wanted(study: Study, part: Part, results: Results) -> list[Cell]:
    """Cells of the part that have no result and may be trained now: those of a best rate once all have theirs."""
    ready: list[Cell] = []
    later: list[Cell] = []
    for grid in grids(study, part, results):
        missing = [cell for cell in tuning_cells_of(grid) if cell not in results]
        ready += missing
        if not missing or part.every_rate:
            for setting, rates in grid.items():
                later += reported_cells(setting, rates, best_rate(setting, rates, results) or rates[0])
    return list(dict.fromkeys([*ready, *(cell for cell in later if cell not in results)]))
