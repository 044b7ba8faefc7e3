"""What came of the cells: a file of rows that is always whole."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import log
from checkpoint import write_whole
from errors import Problem

from comparison.cells import Cell

NAME = "cells.jsonl"


@dataclass(frozen=True)
class Result:
    """A training's validation losses, in nats per token."""

    validation: tuple[tuple[int, float], ...]  # (steps, loss)
    diverged_at: int | None = None

    @property
    def loss(self) -> float:
        """The last one; infinite where the training diverged."""
        return math.inf if self.diverged_at is not None or not self.validation else self.validation[-1][1]

    @property
    def steps(self) -> int:
        """Those that were taken."""
        return self.diverged_at or (self.validation[-1][0] if self.validation else 0)

    def steps_to(self, target: float) -> float:
        """Steps until the loss is `target`, linear between validations; infinite where it never was."""
        before_step, before_loss = 0, math.inf
        for step, loss in self.validation:
            if loss <= target:
                if math.isinf(before_loss):
                    return float(step)
                return before_step + (step - before_step) * (before_loss - target) / (before_loss - loss)
            before_step, before_loss = step, loss
        return math.inf


def of_log(path: Path, steps: int, until_loss: float | None) -> Result | None:
    """What a training's log says; None if it is not at its end."""
    if not path.exists():
        return None
    records = log.read(path)
    losses = [(record["step"], record["loss"]) for record in records if record["kind"] == "validation"]
    validation = tuple((step, float(f"{loss:.6g}")) for step, loss in losses)
    diverged = [record["step"] for record in records if record["kind"] == "diverged"]
    if diverged:
        return Result(validation, diverged[-1])
    if not losses:
        return None
    step, loss = losses[-1]
    at_end = step >= steps or (until_loss is not None and loss <= until_loss)
    return Result(validation) if at_end else None


class Results:
    """Those of a folder, kept in its file as they come.

    Args:
        made_with: what rows depend on beside their flags: versions, data. None: whatever they were made with.

    Raises:
        Problem: the file is damaged, or its rows were made with something else.
    """

    def __init__(self, folder: Path, made_with: dict[str, Any] | None) -> None:
        self._path = folder / NAME
        self._made_with = made_with or {}
        self._of_cell: dict[Cell, Result] = {}
        if not self._path.exists():
            if made_with is not None:
                self._write()
            return
        rows = log.read(self._path)
        if not rows or not isinstance(rows[0], dict) or not isinstance(rows[0].get("made_with"), dict):
            raise Problem(f"{self._path} does not begin with what its rows were made with")
        for name, value in (made_with or {}).items():
            old = rows[0]["made_with"].get(name)
            if old != value:
                raise Problem(f"the rows of {self._path} were made with {name} {old}, here it is {value}; "
                              "another --out begins anew, --report draws what is there")  # fmt: skip
        self._made_with = rows[0]["made_with"]
        try:
            for row in rows[1:]:
                validation = tuple((int(step), float(loss)) for step, loss in row["validation"])
                cell = Cell(json.dumps(row["flags"], sort_keys=True))
                self._of_cell[cell] = Result(validation, row.get("diverged_at"))
        except (KeyError, TypeError, ValueError) as error:
            raise Problem(f"{self._path} holds a row that is no training's") from error

    def __contains__(self, cell: Cell) -> bool:
        return cell in self._of_cell

    def __getitem__(self, cell: Cell) -> Result:
        return self._of_cell[cell]

    def get(self, cell: Cell) -> Result | None:
        return self._of_cell.get(cell)

    def __len__(self) -> int:
        return len(self._of_cell)

    def __iter__(self) -> Iterator[Cell]:
        return iter(self._of_cell)

    @property
    def made_with(self) -> dict[str, Any]:
        return self._made_with

    def add(self, cell: Cell, result: Result) -> None:
        """The file holds it from here on, sorted, so that it does not tell in which order trainings ended."""
        self._of_cell[cell] = result
        self._write()

    def _write(self) -> None:
        lines = [json.dumps({"made_with": self._made_with})]
        for each in sorted(self._of_cell, key=lambda cell: cell.text):
            own = self._of_cell[each]
            row: dict[str, Any] = {"flags": each.flags, "validation": own.validation}
            if own.diverged_at is not None:
                row["diverged_at"] = own.diverged_at
            lines.append(json.dumps(row))
        write_whole(self._path, lambda file: file.write(("\n".join(lines) + "\n").encode()))
