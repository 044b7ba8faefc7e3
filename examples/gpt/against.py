"""`train.py --against OPTIMIZER`: the run with another optimizer too, in a folder beside its own, to compare with."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import checkpoint
import log
import options
import plot
from data import Windows
from errors import Problem
from options import Recipe, Session
from own_optimizer import short_name
from presets import TITLES
from processes import OneProcess
from run import Interrupted, train_to_the_end
from trainer import Trainer


@dataclass(frozen=True)
class Other:
    """The other run, as its folder holds it.

    Args:
        recipe: the run's own, but for the optimizer and its flags, which have their defaults.
        session: the run's own, in the other folder.
        state: the newest checkpoint; None: it starts from the first step.
    """

    recipe: Recipe
    session: Session
    state: dict[str, Any] | None

    def train(self, train: Windows, validation: Windows) -> Interrupted | None:
        """Makes the steps that are left; returns what ended it before, if something did."""
        if self.state is not None and self.state["step"] >= self.recipe.steps:
            print(f"{self.session.folder} has all of its {self.recipe.steps} steps already", flush=True)
            return None
        print(f"training with {title(self.recipe.optimizer)} too, in {self.session.folder}", flush=True)
        trainer = Trainer(self.recipe, self.session.device, train, validation, self.session.compile, OneProcess())
        if self.state is not None:
            trainer.load_state_dict(self.state)
        try:
            return train_to_the_end(trainer, self.session, train.fingerprint())
        except Problem as problem:
            raise Problem(f"{self.session.folder}: {problem}", problem.code) from problem


def open_other(recipe: Recipe, session: Session, fingerprint: int) -> Other | None:
    """What `--against` asks for, before anything is trained; None where it is not given.

    Args:
        recipe: the run's own, as is `session`.
        fingerprint: of the data.

    Raises:
        Problem: the other optimizer is the run's own; the folder holds a run that differs in more than it, or had
            other data, and is not to be replaced; torchdion, which the comparison is made by, is not there.
    """
    if session.against is None:
        return None
    if session.against == recipe.optimizer:
        raise Problem(f"--against {session.against} is the optimizer of the run itself")
    if find_spec("torchdion") is None:
        raise Problem("torchdion cannot be imported; run `make build` first")
    shared = {name: value for name, value in recipe.as_dict().items() if name in Recipe.__dataclass_fields__}
    other = options.recipe(shared | {"optimizer": session.against}, session.device)
    folder = folder_beside(session.folder, recipe, session.against)
    state = checkpoint.newest(folder, print)
    difference = different(folder, state, other, fingerprint)
    if difference and not session.overwrite:
        raise Problem(f"{folder} holds a run to compare with, but {difference}; give --overwrite or another --run")
    return Other(other, replace(session, folder=folder), None if difference else state)


def folder_beside(folder: Path, recipe: Recipe, optimizer: str) -> Path:
    """PRESET-OPTIMIZER beside a run whose folder has such a name; else the run's, with the optimizer behind it."""
    if folder.name == f"{recipe.preset}-{short_name(recipe.optimizer)}":
        return folder.with_name(f"{recipe.preset}-{short_name(optimizer)}")
    return folder.parent / f"{folder.name}-{short_name(optimizer)}"


def different(folder: Path, state: dict[str, Any] | None, recipe: Recipe, fingerprint: int) -> str:
    """In what the folder's run is not the recipe's on the same data; empty where it is, or where there is none."""
    if state is None and not (folder / log.NAME).exists():
        return ""
    saved = state["recipe"] if state is not None else _logged_recipe(folder)
    wanted = recipe.as_dict()
    for name in saved.keys() | wanted.keys():
        if json.dumps(saved.get(name)) != json.dumps(wanted.get(name)):  # in which lists and tuples are the same
            return f"its --{name.replace('_', '-')} is {saved.get(name)} instead of {wanted.get(name)}"
    if state is not None and state["data"] != fingerprint:
        return "its data were others"
    return ""


def _logged_recipe(folder: Path) -> dict[str, Any]:
    recipes: list[dict[str, Any]] = [record["recipe"] for record in log.read(folder / log.NAME) if "recipe" in record]
    return recipes[0] if recipes else {}


def title(optimizer: str) -> str:
    return TITLES.get(optimizer, short_name(optimizer))


def outcome(folders: Sequence[Path]) -> str:
    """Which of two finished runs was ahead, the run's own being the first, in one sentence."""
    from torchdion.demonstration.outcome import Curve, comparison  # only here, as train.py's --help needs no torchdion

    runs = [plot.Curves(folder) for folder in folders]
    ours, baseline = (
        Curve(title(run.recipe["optimizer"]), {record["step"]: record["loss"] for record in run.validation})
        for run in runs
    )
    return comparison(ours, baseline, plot.loss_unit(runs))


def picture(folders: Sequence[Path]) -> str:
    """Draws both runs in the folder of the first; says where, or what that needs."""
    path = folders[0] / "loss.svg"
    if find_spec("matplotlib") is None:
        runs = " ".join(map(str, folders))
        return f"for a picture of both: pip install matplotlib, then python examples/gpt/plot.py {runs}"
    plot.draw([plot.Curves(folder) for folder in folders], path)
    return f"both runs as a picture: {path}"
