"""Studies for tests: small ones, and results that follow from a formula."""

import math
from collections.abc import Callable
from pathlib import Path

from comparison import study
from comparison.cells import Cell
from comparison.results import Result, Results
from comparison.study import Study
from comparison.sweep import wanted

SMALL = """
title = "A test"
widen = 3
[model]
layers = 1
context = 16
head_width = 8
[common]
val_sequences = 8
[contenders.A]
optimizer = "adamw"
rates = [0.01, 0.02, 0.04]
[contenders."B r = d/2"]
optimizer = "dion"
rank_fraction = 0.5
rates = [0.01, 0.02, 0.04]
[[parts]]
name = "one"
title = "One"
question = "Which?"
contenders = ["A", "B r = d/2"]
widths = [16]
batches = [32]
steps = 8
validations = 4
seeds = 3
"""


def written(folder: Path, text: str = SMALL, **replaced: str) -> Path:
    """The study as a file, with some of its texts replaced: `rates` stands for the line that begins with it."""
    for name, value in replaced.items():
        lines = [value if line.startswith(f"{name} =") else line for line in text.splitlines()]
        text = "\n".join(lines)
    path = folder / "study.toml"
    path.write_text(text)
    return path


def read(folder: Path, text: str = SMALL, **replaced: str) -> Study:
    return study.read(written(folder, text, **replaced))


def bowl(best: float, lowest: float) -> Callable[[float], float]:
    """A loss that is `lowest` at the rate `best`, and one more a factor of ten away."""
    return lambda rate: lowest + math.log10(rate / best) ** 2


def run(asked: Study, results: Results, loss: Callable[[Cell], Result], most: int = 1000) -> list[Cell]:
    """Gives every cell that the study wants its result, one by one; returns them in order."""
    done: list[Cell] = []
    while len(done) < most:
        cells = [cell for part in asked.parts for cell in wanted(asked, part, results)]
        if not cells:
            break
        results.add(cells[0], loss(cells[0]))
        done.append(cells[0])
    return done
