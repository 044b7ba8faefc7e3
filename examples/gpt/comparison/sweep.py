"""Which learning rates a setting tries, and which cells that takes: a function of the results so far.

Every contender begins with as many rates. A grid whose best rate is at its edge grows there, until the best has a
neighbour on each side or `widen` rates have been added; the others of the same width and batch grow too, until all have
tried equally many. The seeds by which contenders are compared are trained at the best rate alone.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import groupby

from comparison.cells import Cell, Setting, settings
from comparison.results import Result, Results
from comparison.study import Part, Study

Score = tuple[float, float]  # the smaller the better


def metric(part: Part, result: Result) -> Score:
    """Steps to the target where the part has one, then the last loss."""
    steps = 0.0 if part.until_loss is None else result.steps_to(part.until_loss)
    return steps, result.loss


def score(setting: Setting, rate: float, results: Results) -> Score | None:
    """The mean metric of the tuning seeds; None if one is missing."""
    part = setting.part
    found = [results.get(setting.cell(rate, seed)) for seed in range(part.tuning_seeds)]
    metrics = [metric(part, result) for result in found if result is not None]
    if len(metrics) < part.tuning_seeds:
        return None
    return math.fsum(steps for steps, _ in metrics) / len(metrics), math.fsum(loss for _, loss in metrics) / len(
        metrics
    )


def tried_rates(setting: Setting, results: Results, at_least: int = 0) -> list[float]:
    """All rates of the setting, in order, those included that its results now call for."""
    rates = list(setting.contender.rates)
    factor = rates[1] / rates[0]
    most = len(rates) + setting.study.widen
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


def tried(study: Study, part: Part, results: Results) -> dict[Setting, list[float]]:
    """The rates of every setting of the part."""
    found: dict[Setting, list[float]] = {}
    for _, group in groupby(settings(study, part), key=lambda setting: (setting.width, setting.batch)):
        alike = list(group)
        count = 0
        while True:
            rates = {setting: tried_rates(setting, results, count) for setting in alike}
            most = max(len(each) for each in rates.values())
            if most == count:
                break
            count = most
        found |= rates
    return found


def tuning_cells(setting: Setting, rates: Sequence[float]) -> list[Cell]:
    return [setting.cell(rate, seed) for rate in rates for seed in range(setting.part.tuning_seeds)]


def reported_cells(setting: Setting, rates: Sequence[float], best: float) -> list[Cell]:
    chosen = rates if setting.part.every_rate else [best]
    return [setting.cell(rate, seed) for rate in chosen for seed in setting.part.reported_seeds]


def cells(study: Study, part: Part, results: Results) -> Iterator[Cell]:
    """All cells of the part as far as they are known: those by which rates are chosen, then the others.

    Where the best rate is not known yet, the middle of the grid stands for it.
    """
    later: list[Cell] = []
    for setting, rates in tried(study, part, results).items():
        yield from tuning_cells(setting, rates)
        later += reported_cells(setting, rates, best_rate(setting, rates, results) or rates[len(rates) // 2])
    yield from later


def wanted(study: Study, part: Part, results: Results) -> list[Cell]:
    """Cells of the part that have no result and may be trained now: those of a best rate once all have theirs."""
    ready: list[Cell] = []
    later: list[Cell] = []
    rates_of = tried(study, part, results)
    for _, group in groupby(rates_of, key=lambda setting: (setting.width, setting.batch)):
        alike = list(group)
        missing = [
            cell for setting in alike for cell in tuning_cells(setting, rates_of[setting]) if cell not in results
        ]
        ready += missing
        if not missing or part.every_rate:
            for setting in alike:
                best = best_rate(setting, rates_of[setting], results) or rates_of[setting][0]
                later += reported_cells(setting, rates_of[setting], best)
    return list(dict.fromkeys([*ready, *(cell for cell in later if cell not in results)]))
