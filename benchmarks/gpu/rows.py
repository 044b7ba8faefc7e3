"""Rows of the programs here, as files of JSON lines hold them, of one call or of several."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]

# What a row is about; all else is what was found.
LABELS = (
    *("kind", "call", "part", "program", "suite", "name"),
    *("list", "optimizer", "rank", "state", "precision", "mode", "kernel", "operation", "product", "method", "given"),
    *("count", "rows", "r", "m", "n", "k", "condition", "lr"),
)

# How optimizers of packages begin, and the modes of what is timed beside them end.
PACKAGES = {"dion package": "dion", "gram-newton-schulz": "gram"}


def read(paths: Iterable[Path]) -> list[Row]:
    """The rows of these files, in order; a line that was cut off is no row."""
    found: list[Row] = []
    for path in paths:
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            if isinstance(row, dict):
                found.append(row)
    return merged(found)


def merged(rows: Iterable[Row]) -> list[Row]:
    """A row replaces an earlier one of the same labels, and the problems that stood in its way.

    A problem replaces nothing: what was measured before it stays beside it.
    """
    kept: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        labels = tuple(row.get(label) for label in LABELS)
        if "problem" in row:
            kept[(*labels, "problem")] = row
            continue
        kept[labels] = row
        for key in [key for key, before in kept.items() if key[-1] == "problem" and covers(before, row)]:
            del kept[key]
    return list(kept.values())


def covers(problem: Row, row: Row) -> bool:
    """Whether a row is one of those that a problem kept from being measured."""
    return all(row.get(label) == problem[label] for label in LABELS if problem.get(label) is not None)


def select(rows: Sequence[Row], **labels: Any) -> list[Row]:
    """The rows with these labels, of those that have numbers."""
    return [
        row for row in rows if "problem" not in row and all(row.get(name) == value for name, value in labels.items())
    ]


def package_of(optimizer: str) -> str | None:
    """What the name of a package's optimizer begins with; None of torch's and of this library's."""
    return next((package for package in PACKAGES if optimizer.startswith(package)), None)


def beside(rival: str) -> str:
    """The mode of this library's steps that were timed in the same run as another optimizer's, for a ratio of both.

    Example:
        >>> beside("AdamW"), beside("dion package Muon"), beside("gram-newton-schulz Muon")
        ('beside torch', 'beside dion', 'beside gram')
    """
    package = package_of(rival)
    return f"beside {PACKAGES[package] if package else 'torch'}"


def one(rows: Sequence[Row], **labels: Any) -> Row:
    """The row with these labels; without numbers where there is none."""
    return next(iter(select(rows, **labels)), {})


def ratio(above: Any, below: Any) -> float | None:
    return above / below if above is not None and below else None
