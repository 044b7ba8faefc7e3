"""examples/gpt/own_optimizer.py: a user's file is a module like any other, and its optimizers own the model."""

from pathlib import Path

import pytest
import torch
from errors import Problem
from model import GPT, Shape
from own_optimizer import build, hyperparameters, is_own, short_name

FILE = """
from __future__ import annotations

from dataclasses import dataclass

import torch
from beside import RATE

executed = []

@dataclass
class Options:
    lr: float

def sgd(model, *, lr=RATE):
    executed.append(lr)
    return torch.optim.SGD(model.parameters(), lr=Options(lr).lr)

def blocks_alone(model, *, lr=RATE):
    return torch.optim.SGD(model.blocks.parameters(), lr=lr)

def twice(model, *, lr=RATE):
    return [sgd(model, lr=lr), blocks_alone(model, lr=lr)]

def nothing(model, *, lr=RATE):
    return None
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("RATE = 0.25\n")
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


def model() -> GPT:
    return GPT(Shape(16, 1, 8, 2))


def test_a_file_may_have_dataclasses_and_import_its_neighbours(file: Path) -> None:
    [built] = build(f"{file}:sgd", model(), hyperparameters(f"{file}:sgd"), 0)
    assert isinstance(built, torch.optim.SGD)
    assert built.defaults["lr"] == 0.25


def test_a_file_is_executed_once_for_each_version(file: Path) -> None:
    for lr in (0.1, 0.2):
        [built] = build(f"{file}:sgd", model(), {"lr": lr}, 0)
    first = type(built)
    file.write_text(FILE.replace("RATE)", "3 * RATE)"))
    assert hyperparameters(f"{file}:sgd") == {"lr": 0.75}
    assert first is torch.optim.SGD


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("blocks_alone", "gives embedding.weight to 0 optimizers; it needs one"),
        ("twice", "gives blocks.0.attention.query.weight to 2 optimizers; it needs one"),
        ("nothing", "must return a torch.optim.Optimizer, or a list of them"),
    ],
)
def test_what_does_not_own_the_model_is_refused(file: Path, name: str, sentence: str) -> None:
    with pytest.raises(Problem, match=sentence):
        build(f"{file}:{name}", model(), {"lr": 0.1}, 0)


def test_an_error_of_the_file_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("def sgd(model, *, lr=0.1:\n")
    with pytest.raises(Problem, match=r"broken.py raises SyntaxError"):
        hyperparameters(f"{path}:sgd")


def test_names_of_files_and_functions_are_told_from_others() -> None:
    assert is_own("folder/mine.py:sgd")
    assert not is_own("dion")
    assert not is_own("mine.py:")
    assert (short_name("folder/mine.py:sgd"), short_name("dion")) == ("mine-sgd", "dion")
