"""What a step of each contender takes, measured with nothing beside it, and the bytes of its state.

The trainings of a study run at once and disturb each other, so that their clocks say little. Here all contenders of one
width and batch take turns, a step each, round after round, and the medians are kept.
"""

import hashlib
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import log
import processes
import torch
from checkpoint import write_whole
from errors import Problem
from torch import Tensor
from train import open_data
from trainer import Trainer

from comparison import sweep
from comparison.cells import Setting, recipe_of, settings
from comparison.results import Results
from comparison.study import Part, Study

NAME = "steps.jsonl"
ROUNDS = 7
FIGURES = {"curves", "costs"}  # what is drawn from them
# Flags that do not change what a step takes.
OF_THE_RUN = ("lr", "seed", "steps", "val_every", "until_loss", "warmup", "decay")

Timed = str  # what is timed, as a digest of its flags


@dataclass(frozen=True)
class StepTime:
    timed: Timed
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


def timed(setting: Setting) -> Timed:
    flags = {name: value for name, value in setting.cell(1.0, 0).flags.items() if name not in OF_THE_RUN}
    return hashlib.sha256(json.dumps(flags, sort_keys=True).encode()).hexdigest()[:16]


def read(folder: Path) -> dict[Timed, StepTime]:
    """Those of a folder; none if it has no file of them."""
    path = folder / NAME
    try:
        rows = [StepTime(**row) for row in log.read(path)] if path.exists() else []
    except TypeError as error:
        raise Problem(f"{path} holds a row that is no step's time; --measure makes them anew") from error
    return {row.timed: row for row in rows}


def wanted(
    study: Study, parts: Sequence[Part], results: Results, known: Mapping[Timed, StepTime]
) -> list[dict[Setting, float]]:
    """What figures of the parts need and is not known: settings of each part's first width and batch, with best rates.

    Of each width and batch all settings anew where one is missing: only what has taken turns may be compared.
    """
    found: dict[tuple[int, int], dict[Timed, Setting]] = {}
    for part in parts:
        if not FIGURES & set(part.figures):
            continue
        for setting in settings(study, part):
            if (setting.width, setting.batch) == part.first and setting.cell(1.0, 0).processes == 1:
                found.setdefault(part.first, {})[timed(setting)] = setting
    missing = []
    for settings_of in found.values():
        rates = {setting: _finite_rate(setting, results) for setting in settings_of.values()}
        alike = {setting: rate for setting, rate in rates.items() if rate is not None}
        if any(timed(setting) not in known for setting in alike):
            missing.append(alike)
    return missing


def _finite_rate(setting: Setting, results: Results) -> float | None:
    """The best one, if it does not diverge."""
    rate = sweep.best_rate(setting, sweep.tried_rates(setting, results), results)
    found = None if rate is None else sweep.score(setting, rate, results)
    return rate if found is not None and math.isfinite(found.loss) else None


def measure(rates: Mapping[Setting, float], threads: int, say: Callable[[str], None]) -> list[StepTime]:
    """Of settings of one width and batch, each at its rate."""
    torch.set_num_threads(threads)
    width, device = next((setting.width, torch.device(setting.study.device)) for setting in rates)
    trainers: dict[Setting, Trainer] = {}
    for setting, rate in rates.items():
        recipe = recipe_of(setting.cell(rate, 0), setting.study.device)
        windows, validation = open_data(recipe)
        trainers[setting] = Trainer(recipe, device, windows, validation, False, processes.OneProcess())
    seconds: dict[Setting, list[float]] = {setting: [] for setting in trainers}
    within: dict[Setting, list[float]] = {setting: [] for setting in trainers}
    for index in range(ROUNDS + 1):
        say(f"step times at width {width}: round {index} of {ROUNDS}")
        for setting, trainer in trainers.items():
            before = trainer.seconds
            report = trainer.train_step()
            if index > 0:  # the first makes states and workspaces
                seconds[setting].append(trainer.seconds - before)
                within[setting].append(report.optimizer_ms / 1000)
    return [
        StepTime(
            timed=timed(setting),
            contender=setting.contender.name,
            width=setting.width,
            batch=setting.batch,
            seconds=float(f"{statistics.median(seconds[setting]):.4g}"),
            optimizer_seconds=float(f"{statistics.median(within[setting]):.4g}"),
            state_bytes=sum(map(_state_bytes, trainer.optimizers)),
            parameters=sum(parameter.numel() for parameter in trainer.model.parameters()),
            threads=threads,
        )
        for setting, trainer in trainers.items()
    ]


def write(folder: Path, rows: Sequence[StepTime]) -> None:
    text = "".join(json.dumps(asdict(row)) + "\n" for row in rows)
    write_whole(folder / NAME, lambda file: file.write(text.encode()))


def _state_bytes(optimizer: torch.optim.Optimizer) -> int:
    values: list[Any] = [value for state in optimizer.state.values() for value in state.values()]
    return sum(value.nbytes for value in values if isinstance(value, Tensor))
