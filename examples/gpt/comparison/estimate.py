"""How long a study still takes."""

from collections import defaultdict
from collections.abc import Iterable
from functools import cache

from model import parameters

from comparison.cells import Cell, recipe_of

Kind = tuple[int, int, bool]  # width, processes, whether it ends at a target


@cache
def cost(cell: Cell) -> float:
    """How much work a training is: its tokens times the model's parameters."""
    recipe = recipe_of(cell)
    return float(recipe.steps * recipe.batch * recipe.context) * parameters(recipe.shape)


class Estimate:
    """How long the cells that are left will take, by those that have ended.

    Seconds per unit of cost are learned for each kind by itself; before one of its kind has ended, a cell takes as many
    as all others on average for the steps that they took.
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._spent: defaultdict[Kind, float] = defaultdict(float)  # seconds × processes
        self._done: defaultdict[Kind, float] = defaultdict(float)  # cost
        self._worked = 0.0  # cost of the steps that were taken

    def learn(self, cell: Cell, steps: int, seconds: float) -> None:
        """A training that took so many of its steps, fewer where it reached a target or diverged."""
        self._spent[_kind(cell)] += seconds * min(cell.processes, self._jobs)
        self._done[_kind(cell)] += cost(cell)
        self._worked += cost(cell) * steps / cell.flags["steps"]

    def seconds_left(self, cells: Iterable[Cell]) -> float | None:
        """None: nothing has ended yet."""
        if not self._worked:
            return None
        mean = sum(self._spent.values()) / self._worked
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


def _kind(cell: Cell) -> Kind:
    return int(cell.flags["d_model"]), cell.processes, "until_loss" in cell.flags
