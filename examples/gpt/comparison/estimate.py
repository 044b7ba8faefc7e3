"""How long a study still takes."""

from collections import defaultdict
from collections.abc import Iterable
from functools import cache

from model import parameters

from comparison.cells import Cell, recipe_of


@cache
def cost(cell: Cell) -> float:
    """How much work a training is: its tokens times the model's parameters."""
    recipe = recipe_of(cell)
    return float(recipe.steps * recipe.batch * recipe.context) * parameters(recipe.shape)


class Estimate:
    """How long the cells that are left will take, by those that have ended.

    A cost's seconds are learned for each width and number of processes by itself; before one of its kind has ended, a
    cell takes as many as all others on average.
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._spent: defaultdict[tuple[int, int], float] = defaultdict(float)  # seconds × processes, by kind
        self._done: defaultdict[tuple[int, int], float] = defaultdict(float)  # cost, by kind

    def learn(self, cell: Cell, seconds: float) -> None:
        self._spent[_kind(cell)] += seconds * min(cell.processes, self._jobs)
        self._done[_kind(cell)] += cost(cell)

    def seconds_left(self, cells: Iterable[Cell]) -> float | None:
        """None: nothing has ended yet."""
        if not self._done:
            return None
        mean = sum(self._spent.values()) / sum(self._done.values())
        left = 0.0
        for cell in cells:
            kind = _kind(cell)
            left += cost(cell) * (self._spent[kind] / self._done[kind] if kind in self._done else mean)
        return left / self._jobs


def duration(seconds: float) -> str:
    """For people: 50 s, 12 min, 3.2 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _kind(cell: Cell) -> tuple[int, int]:
    return int(cell.flags["d_model"]), cell.processes
