"""What a step of each contender takes, measured with nothing beside it, and the bytes of its state.

The trainings of a study run at once and disturb each other, so that their clocks say little. Here all contenders of one
width take turns, a step each, round after round, and the medians are kept.
"""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import log
import processes
import torch
from checkpoint import write_whole
from torch import Tensor
from train import open_data
from trainer import Trainer

from comparison.cells import Setting, recipe_of, settings
from comparison.study import Part, Study

NAME = "steps.jsonl"
ROUNDS = 7


@dataclass(frozen=True)
class StepTime:
    contender: str
    width: int
    batch: int  # tokens
    seconds: float  # of a whole step
    optimizer_seconds: float  # within step()
    state_bytes: int
    parameters: int
    threads: int

    @property
    def share(self) -> float:
        """The optimizer's, of a step."""
        return self.optimizer_seconds / self.seconds

    def at(self, batch: int) -> float:
        """Seconds of a step of another batch: forward and backward take as much for each token."""
        return self.optimizer_seconds + (self.seconds - self.optimizer_seconds) * batch / self.batch


def read(folder: Path) -> dict[tuple[str, int], StepTime]:
    """Those of a folder by contender and width; none if it has no file of them."""
    path = folder / NAME
    rows = log.read(path) if path.exists() else []
    return {(row["contender"], row["width"]): StepTime(**row) for row in rows}


def measure(alike: Sequence[Setting], threads: int, say: Callable[[str], None]) -> list[StepTime]:
    """Of settings of one width and batch."""
    torch.set_num_threads(threads)
    device = torch.device(alike[0].study.device)
    trainers: dict[str, Trainer] = {}
    for setting in alike:
        recipe = recipe_of(setting.cell(setting.contender.rates[1], 0))
        windows, validation = open_data(recipe)
        trainers[setting.contender.name] = Trainer(recipe, device, windows, validation, False, processes.OneProcess())
    seconds: dict[str, list[float]] = {name: [] for name in trainers}
    within: dict[str, list[float]] = {name: [] for name in trainers}
    for index in range(ROUNDS + 1):
        say(f"step times at width {alike[0].width}: round {index} of {ROUNDS}")
        for name, trainer in trainers.items():
            before = trainer.seconds
            report = trainer.train_step()
            if index > 0:  # the first makes states and workspaces
                seconds[name].append(trainer.seconds - before)
                within[name].append(report.optimizer_ms / 1000)
    return [
        StepTime(
            contender=name,
            width=alike[0].width,
            batch=alike[0].batch,
            seconds=float(f"{statistics.median(seconds[name]):.4g}"),
            optimizer_seconds=float(f"{statistics.median(within[name]):.4g}"),
            state_bytes=sum(map(_state_bytes, trainer.optimizers)),
            parameters=sum(parameter.numel() for parameter in trainer.model.parameters()),
            threads=threads,
        )
        for name, trainer in trainers.items()
    ]


def wanted(study: Study, parts: Sequence[Part], known: Mapping[tuple[str, int], StepTime]) -> list[list[Setting]]:
    """What figures of these parts need and is not known: of each its first width and batch, alike in both."""
    found: dict[tuple[int, int], dict[str, Setting]] = {}
    for part in parts:
        if not {"curves", "costs"} & set(part.figures):
            continue
        width, batch = min(part.widths), min(part.batches)
        for setting in settings(study, part):
            if (setting.width, setting.batch) == (width, batch) and setting.cell(1.0, 0).processes == 1:
                found.setdefault((width, batch), {})[setting.contender.name] = setting
    # All of a width and batch anew where one is missing: only what has taken turns may be compared.
    return [
        list(alike.values()) for (width, _), alike in found.items() if any((name, width) not in known for name in alike)
    ]


def write(folder: Path, rows: Sequence[StepTime]) -> None:
    text = "".join(json.dumps(asdict(row)) + "\n" for row in rows)
    write_whole(folder / NAME, lambda file: file.write(text.encode()))


def _state_bytes(optimizer: torch.optim.Optimizer) -> int:
    values: list[Any] = [value for state in optimizer.state.values() for value in state.values()]
    return sum(value.nbytes for value in values if isinstance(value, Tensor))
