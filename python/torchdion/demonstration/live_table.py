"""What a person sees while the demo runs: rows of a table, and on a terminal how far the next one is."""

import sys
from collections.abc import Sequence


class Table:
    """A table that is printed row by row, below the names of its columns.

    Args:
        steps: of the whole training.
        titles: of the columns behind the one of steps.
    """

    def __init__(self, steps: int, titles: Sequence[str]) -> None:
        self._steps = steps
        self._widths = [max(len("step"), len(str(steps))), *map(len, titles)]
        self._on_terminal = sys.stdout.isatty()
        self._print("step", *titles)

    def row(self, step: int, losses: Sequence[float]) -> None:
        self._print(str(step), *(f"{loss:.3f}" for loss in losses))

    def show(self, step: int) -> None:
        """Says on a terminal, until the next row takes its place, which step has been made."""
        if self._on_terminal:
            print(f"{step} of {self._steps}", end="\r", flush=True)

    def _print(self, *cells: str) -> None:
        line = "  ".join(cell.rjust(width) for cell, width in zip(cells, self._widths, strict=True))
        print(line, flush=True)
