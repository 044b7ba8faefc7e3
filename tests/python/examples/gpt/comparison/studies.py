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


TARGETS = """
[[parts]]
name = "two"
title = "Two"
contenders = ["A", "B r = d/2"]
widths = [16]
batches = [32, 64]
steps = 8
until_loss = 2.5
figures = ["targets", "rates", "links"]
"""


def loss_of(cell: Cell) -> Result:
    """A is above B by 0.3 and never at the target of larger batches; seeds differ by 0.01."""
    of_b = cell.flags["optimizer"] == "dion"
    last = bowl(0.02, 2.0 if of_b else 2.3)(cell.flags["lr"]) + 0.01 * cell.flags["seed"]
    if cell.flags["batch"] == 4 and not of_b:
        last += 1
    return Result(((4, last + 1), (8, last)))


def steps_of(steps: dict[str, tuple[float, float, float]]) -> Callable[[Cell], Result]:
    """So many steps of the seeds 1, 2 and 3 to the target of 2.5."""

    def loss(cell: Cell) -> Result:
        count = steps[cell.flags["optimizer"]][max(0, cell.flags["seed"] - 1)]
        far = abs(math.log(cell.flags["lr"] / 0.02))  # steps more at other rates
        return Result(((int(count + 10 * far), 2.5), (int(count + 10 * far) + 1, 2.4)))

    return loss
