"""A study's description: a TOML file, read and checked.

    title = "..."
    introduction = "..."        # of the report
    widen = 4                   # by how many rates a grid may grow; a part may have its own
    replicas = 4                # of which traffic is counted
    device = "cpu"              # or "cuda"
    [model]                     # flags of train.py (with _), of every training
    context = 256               # needed
    head_width = 32             # so many heads as it divides the width
    [common]                    # more flags of every training
    [defaults]                  # of every part
    [contenders."Dion r = d/4"] # flags of the optimizer, and the learning rates that are tried first, a geometric grid
    optimizer = "dion"
    rank_fraction = 0.25
    rates = [0.01, 0.02, 0.04]
    [[parts]]                   # contenders × widths × batches, each at its own best rate, over seeds
    name = "batch"
    title = "..."
    question = "..."            # above the part's figures, as is
    answer = "..."
    contenders = ["Dion r = d/4", "Muon"]
    widths = [64]
    batches = [4096, 65536]     # tokens
    steps = [800, 200]          # one number for all, or one for each batch
    rates_up = [0, 2]           # so many factors above the contenders' the first rates of each batch are
    seeds = 3                   # by which contenders are compared; one number for all, or one for each width
    tuning_seeds = 1            # by which rates are chosen
    every_rate = false          # true: all seeds at all rates, not at the best one alone
    validations = 10            # of a training, evenly spread
    until_loss = 1.65           # a training ends there; contenders are compared by steps to it
    figures = ["targets"]       # of FIGURES
    flags = { decay = 0.0 }     # of train.py, of every training of the part

`base = "small"` lays the file over small.toml, beside it or else in studies/, table over table.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from errors import Problem
from options import Recipe

from comparison.toml_table import Table, based

STUDIES = Path(__file__).resolve().parent.parent / "studies"
FIGURES = ("curves", "losses", "rates", "ranks", "widths", "targets", "costs", "links")
OF_TARGETS = ("targets", "links")  # what is drawn of parts with until_loss, beside rates


@dataclass(frozen=True, eq=False)
class Contender:
    """An optimizer with its options: what a curve of the report is of."""

    name: str
    flags: Mapping[str, Any]
    rates: tuple[float, ...]

    @property
    def factor(self) -> float:
        """From one rate to the next."""
        return float(f"{self.rates[1] / self.rates[0]:.4g}")

    @property
    def family(self) -> str:
        """The name without its rank, and what follows a comma, for plots against ranks and for colours."""
        return re.split(" r = |, ", self.name)[0]


@dataclass(frozen=True, eq=False)
class Part:
    """A question, and the grid of trainings that answers it."""

    name: str
    title: str
    question: str
    answer: str
    contenders: tuple[Contender, ...]
    widths: tuple[int, ...]
    batches: tuple[int, ...]  # tokens
    steps: tuple[int, ...]  # of each batch
    widen: int  # by how many rates a grid may grow
    rates_up: tuple[int, ...]  # of each batch: by how many factors the contenders' first rates are moved up
    seeds: tuple[int, ...]  # by which contenders are compared, of each width
    tuning_seeds: int  # the first ones, beside these, by whose mean the rate is chosen
    every_rate: bool  # all seeds at all rates, not at the best one alone
    validations: int  # of a training, evenly spread
    until_loss: float | None  # the target: a training ends there
    figures: tuple[str, ...]
    flags: Mapping[str, Any]

    @property
    def first(self) -> tuple[int, int]:
        """The smallest width and batch."""
        return min(self.widths), min(self.batches)


@dataclass(frozen=True, eq=False)
class Study:
    name: str
    title: str
    introduction: str
    flags: Mapping[str, Any]  # of every training
    head_width: int
    device: str  # of train.py
    replicas: int  # of which traffic is counted
    contenders: Mapping[str, Contender]
    parts: tuple[Part, ...]

    @property
    def context(self) -> int:
        return int(self.flags["context"])

    @property
    def token(self) -> str:
        """What losses are per."""
        return "token" if "data" in self.flags and self.flags.get("vocab") != 256 else "byte"


# Flags that the grid gives, and those of a single run.
OF_THE_GRID = {"lr", "seed", "d_model", "heads", "batch", "steps", "val_every", "until_loss", "run", "resume", "keep",
               "against", "overwrite", "checkpoint_on_signal", "device", "tensorboard", "prompt",
               "sample_length"}  # fmt: skip
# Flags that are the same for all, for a contender not to set.
OF_ALL = {*Recipe.__dataclass_fields__, "weight_decay", "scalar_algorithm", "scalar_lr", "dp", "fs", "tp",
          "checkpoint_every", "compile"} - {"optimizer"}  # fmt: skip
# Flags that the whole study has alike.
OF_THE_STUDY = {"preset", "context", "vocab", "data", "val_data"}


def find(name: str) -> Path:
    """A file, or the name of one in studies/.

    Raises:
        Problem: there is none.
    """
    if name.endswith(".toml"):
        path = Path(name)
        if not path.is_file():
            raise Problem(f"there is no file {name}")
        return path
    path = STUDIES / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in STUDIES.glob("*.toml")))
        raise Problem(f"the studies here are {known}; {name!r} is none of them, and no .toml file")
    return path


def read(path: Path) -> Study:
    """The study, checked but for the flags of its trainings (cells.py).

    Raises:
        Problem: the file is no TOML, or what it says cannot be; the sentence names the place.
    """
    return _study(Table(based(path, STUDIES), str(path)), path.stem)


def _study(table: Table, name: str) -> Study:
    model, common = table.table("model"), table.table("common")
    head_width, context = model.count("head_width", 32), model.count("context", 0)
    flags = {"preset": "tiny", "context": context, **model.flags(OF_THE_GRID), **common.flags(OF_THE_GRID)}
    all_contenders = table.take("contenders", dict, needed=True)
    contenders = {name: _contender(name, values, table.place) for name, values in all_contenders.items()}
    defaults, widen = table.take("defaults", dict, {}), table.count("widen", 4, 0)
    parts = []
    for index, values in enumerate(table.take("parts", list, needed=True), 1):
        if not isinstance(values, dict):
            raise Problem(f"{table.place}: parts has {values!r}, which should be a table")
        described = Table({**defaults, **values}, f"{table.place}, part {index}")
        parts.append(_part(described, contenders, context, widen))
    if not parts:
        raise Problem(f"{table.place}: parts is empty")
    study = Study(
        name=name,
        title=table.take("title", str, needed=True),
        introduction=table.take("introduction", str, ""),
        flags=flags,
        head_width=head_width,
        device=_device(table),
        replicas=table.count("replicas", 4),
        contenders=contenders,
        parts=tuple(parts),
    )
    table.end()
    names = [part.name for part in parts]
    for part in parts:
        if names.count(part.name) > 1:
            raise Problem(f"{table.place}: two parts are called {part.name!r}")
        for width in part.widths:
            if width % head_width:
                raise Problem(f"{table.place}: a width of {width} is no multiple of head_width, {head_width}")
    return study


def _device(table: Table) -> str:
    device: str = table.take("device", str, "cpu")
    if device not in ("cpu", "cuda"):
        raise Problem(f"{table.place}: device must be cpu or cuda, got {device!r}")
    return device


def _contender(name: str, values: Any, place: str) -> Contender:
    if not isinstance(values, dict):
        raise Problem(f"{place}: contender {name!r} is {values!r}, which should be a table")
    table = Table(values, f"{place}, contender {name!r}")
    rates = table.take("rates", list, needed=True)
    if not all(isinstance(rate, (int, float)) and not isinstance(rate, bool) and rate > 0 for rate in rates):
        raise Problem(f"{table.place}: rates must be positive numbers, got {rates!r}")
    steps = [after / before for before, after in pairwise(rates)]
    if len(rates) < 3 or min(steps) <= 1 or max(steps) > 1.05 * min(steps):
        raise Problem(f"{table.place}: rates must be three or more in geometric progression, got {rates!r}")
    return Contender(name, table.flags(OF_THE_GRID | OF_ALL), tuple(float(rate) for rate in rates))


def _part(table: Table, contenders: Mapping[str, Contender], context: int, widen: int) -> Part:
    names = table.names("contenders", contenders)
    factors = [contenders[name].factor for name in names]
    if max(factors) > 1.05 * min(factors):
        raise Problem(f"{table.place}: the rates of its contenders are {sorted(factors)} apart; all must be alike")
    counts = {len(contenders[name].rates) for name in names}
    if len(counts) != 1:
        raise Problem(f"{table.place}: its contenders begin with {sorted(counts)} rates; all must with the same number")
    batches = table.counts("batches")
    for batch in batches:
        if batch % context:
            raise Problem(f"{table.place}: a batch of {batch} tokens is no multiple of the context, {context}")
    widths = table.counts("widths")
    until_loss = table.take("until_loss", (int, float), None)
    figures = table.names("figures", FIGURES, ["rates"])
    for figure in figures:
        if (figure in OF_TARGETS) != (until_loss is not None) and figure != "rates":
            needs = "needs" if figure in OF_TARGETS else "is of parts without"
            raise Problem(f"{table.place}: the figure {figure} {needs} until_loss")
    name = table.take("name", str, needed=True)
    if not re.fullmatch(r"[\w-]+", name):
        raise Problem(f"{table.place}: name must be of letters, digits, _ and -, got {name!r}")
    part = Part(
        name=name,
        title=table.take("title", str, needed=True),
        question=table.take("question", str, ""),
        answer=table.take("answer", str, ""),
        contenders=tuple(contenders[name] for name in names),
        widths=widths,
        batches=batches,
        steps=table.each("steps", "batch", len(batches)),
        widen=table.count("widen", widen, 0),
        rates_up=table.each("rates_up", "batch", len(batches), 0, least=None),
        seeds=table.each("seeds", "width", len(widths), 3),
        tuning_seeds=table.count("tuning_seeds", 1),
        every_rate=table.take("every_rate", bool, False),
        validations=table.count("validations", 10),
        until_loss=until_loss,
        figures=tuple(figures),
        flags=Table(table.take("flags", dict, {}), f"{table.place}, flags").flags(OF_THE_GRID | OF_THE_STUDY),
    )
    table.end()
    return part
