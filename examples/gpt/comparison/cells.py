"""What is to be trained: settings of a part, and cells, each one training with all of its flags."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import options
import torch
from errors import Problem
from flags import every_hyperparameter
from own_optimizer import digest, hyperparameters, is_own

from comparison.study import Contender, Part, Study
from comparison.toml_table import SWITCHES

# In a cell's flags, of an optimizer of the user's: the digest of its file, whose rows are not those of another version.
DIGEST = "optimizer_file"


@dataclass(frozen=True)
class Cell:
    """One training, known by its flags alone, so that parts that need the same one share it."""

    text: str  # the flags as JSON, sorted by name

    @cached_property
    def flags(self) -> dict[str, Any]:
        flags: dict[str, Any] = json.loads(self.text)
        return flags

    @cached_property
    def key(self) -> str:
        """A name for its folder."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    def check_file(self) -> None:
        """That the file of an optimizer of the user's is still the one whose rows are asked for.

        Raises:
            Problem: it is another.
        """
        if DIGEST in self.flags and digest(self.flags["optimizer"]) != self.flags[DIGEST]:
            raise Problem(f"{self.flags['optimizer']} has changed; the same command begins its trainings anew", code=1)

    @property
    def processes(self) -> int:
        return int(self.flags.get("dp", 1) * self.flags.get("fs", 1) * self.flags.get("tp", 1))

    @property
    def is_compressed(self) -> bool:
        """Whether replicas keep momenta of their own, which a checkpoint averages."""
        return bool(self.flags.get("compress", False))

    @property
    def arguments(self) -> list[str]:
        """The flags as train.py's command line has them."""
        arguments = []
        for name, value in self.flags.items():
            if name == DIGEST:
                continue
            flag = name.replace("_", "-")
            if name in SWITCHES:  # on where they stand; others that are true or false have a --no- too
                arguments += [f"--{flag}"] * value
            elif isinstance(value, bool):
                arguments.append(f"--{flag}" if value else f"--no-{flag}")
            elif isinstance(value, list):
                arguments += [f"--{flag}", *map(str, value)]
            else:
                arguments += [f"--{flag}", str(value)]
        return arguments


@dataclass(frozen=True)
class Setting:
    """A contender at one width and batch of a part: what gets a learning rate and seeds."""

    study: Study
    part: Part
    contender: Contender
    width: int
    batch: int  # tokens

    @property
    def optimizer(self) -> str:
        return str(self.contender.flags.get("optimizer", "dion"))

    @property
    def steps(self) -> int:
        return self.part.steps[self.part.batches.index(self.batch)]

    @property
    def rates(self) -> list[float]:
        """The first ones."""
        rates, factor = list(self.contender.rates), self.contender.factor
        up = self.part.rates_up[self.part.batches.index(self.batch)]
        for _ in range(abs(up)):
            rates = [*rates[1:], rates[-1] * factor] if up > 0 else [rates[0] / factor, *rates[:-1]]
        return [float(f"{rate:.4g}") for rate in rates]

    @property
    def seeds(self) -> range:
        """By which it is compared: others than the tuning seeds, which favour what they have chosen."""
        part = self.part
        return range(part.tuning_seeds, part.tuning_seeds + part.seeds[part.widths.index(self.width)])

    def cell(self, rate: float, seed: int) -> Cell:
        common = {
            **self.study.flags,
            "d_model": self.width,
            "heads": self.width // self.study.head_width,
            "batch": self.batch // self.study.context,
            "steps": self.steps,
            "val_every": max(1, self.steps // self.part.validations),
            **({} if self.part.until_loss is None else {"until_loss": self.part.until_loss}),
            **self.part.flags,
        }
        own = {**self.contender.flags, "lr": float(f"{rate:.4g}"), "seed": seed}
        if is_own(self.optimizer):
            known = hyperparameters(self.optimizer)
            common = {
                name: value for name, value in common.items() if name in known or name not in every_hyperparameter()
            }
            own[DIGEST] = digest(self.optimizer)
        return Cell(json.dumps(common | own, sort_keys=True))


def settings(study: Study, part: Part) -> Iterator[Setting]:
    for width in part.widths:
        for batch in part.batches:
            for contender in part.contenders:
                yield Setting(study, part, contender, width, batch)


def check(study: Study) -> None:
    """Every setting's flags, as train.py checks them.

    Raises:
        Problem: with the part, the contender and train.py's own sentence.
    """
    for part in study.parts:
        for setting in settings(study, part):
            cell = setting.cell(setting.rates[0], 0)
            try:
                recipe_of(cell, study.device)
            except Problem as problem:
                raise Problem(f"part {part.name!r}, contender {setting.contender.name!r}: {problem}") from problem


def recipe_of(cell: Cell, device: str = "cpu") -> options.Recipe:
    """What train.py makes of the flags."""
    given = options.parse(cell.arguments)
    return options.recipe(given, torch.device(device), job=options.job_of(given))
