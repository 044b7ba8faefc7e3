"""An optimizer from a file of the user's: `--optimizer FILE.py:NAME`.

NAME is a function of the model that returns a torch.optim.Optimizer, or a list of them that together own every
parameter. Its keywords are the flags that it has, with their defaults; `seed`, if it is one, is the run's:

    def sgd(model, *, lr=0.1, weight_decay=0.0):
        return torch.optim.SGD(model.parameters(), lr=lr, weight_decay=weight_decay)
"""

import hashlib
import importlib.util
import inspect
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from errors import Problem
from model import GPT
from torch.optim import Optimizer

HERE = Path(__file__).resolve().parent
Build = Callable[..., Optimizer | list[Optimizer]]


def is_own(optimizer: str) -> bool:
    """Whether the flag's value is FILE.py:NAME."""
    file, colon, name = optimizer.rpartition(":")
    return bool(colon) and file.endswith(".py") and name.isidentifier()


def short_name(optimizer: str) -> str:
    """For folders: FILE-NAME of FILE.py:NAME; others are short."""
    if not is_own(optimizer):
        return optimizer
    file, _, name = optimizer.rpartition(":")
    return f"{Path(file).stem}-{name}"


def hyperparameters(optimizer: str) -> dict[str, Any]:
    """The function's keywords and their defaults, without `seed`.

    Raises:
        Problem: the file or the function is not there, or the function is not as this module's docstring says.
    """
    parameters = list(inspect.signature(_function(optimizer)).parameters.values())
    rest = parameters[1:]
    if not parameters or any(p.kind != p.KEYWORD_ONLY or p.default is p.empty for p in rest):
        raise Problem(f"--optimizer {optimizer} must be a function (model, *, keywords with defaults)")
    if "lr" not in (p.name for p in rest):
        raise Problem(f"--optimizer {optimizer} needs the keyword lr")
    return {p.name: p.default for p in rest if p.name != "seed"}


def build(optimizer: str, model: GPT, own: dict[str, Any], seed: int) -> list[Optimizer]:
    """What the function returns, as a list.

    Raises:
        Problem: it is no optimizer, or some parameter has none or two.
    """
    function = _function(optimizer)
    seeded = {"seed": seed} if "seed" in inspect.signature(function).parameters else {}
    built = function(model, **own, **seeded)
    optimizers = built if isinstance(built, list) else [built]
    if not all(isinstance(each, Optimizer) for each in optimizers):
        raise Problem(f"--optimizer {optimizer} must return a torch.optim.Optimizer, or a list of them")
    owned = Counter(id(p) for each in optimizers for group in each.param_groups for p in group["params"])
    for name, parameter in model.named_parameters():
        if owned[id(parameter)] != 1:
            raise Problem(f"--optimizer {optimizer} gives {name} to {owned[id(parameter)]} optimizers; it needs one")
    return optimizers


def file_of(optimizer: str) -> Path:
    text, _, _ = optimizer.rpartition(":")
    file = Path(text) if Path(text).is_file() else HERE / text
    if not file.is_file():
        raise Problem(f"--optimizer {optimizer}: there is no file {text}, here or beside train.py")
    return file.resolve()


def digest(optimizer: str) -> str:
    """Of its file, as it is now."""
    return hashlib.sha256(file_of(optimizer).read_bytes()).hexdigest()[:16]


def _function(optimizer: str) -> Build:
    file, name = file_of(optimizer), optimizer.rpartition(":")[2]
    found = getattr(_module(optimizer.rpartition(":")[0], file, digest(optimizer)), name, None)
    if not callable(found):
        raise Problem(f"--optimizer {optimizer}: {file} has no function {name}")
    function: Build = found
    return function


@cache
def _module(text: str, file: Path, version: str) -> ModuleType:
    """The file as a module, executed once for each version; beside it others may lie that it imports."""
    spec = importlib.util.spec_from_file_location(f"own_optimizer_{file.stem}_{version}", file)
    assert spec is not None and spec.loader is not None  # the name ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's file raises
        raise Problem(f"{text} raises {type(error).__name__}: {error}") from error
    return module
