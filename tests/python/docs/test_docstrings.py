"""Docstrings have examples that run and name every option, and the stubs name what the engine has."""

import ast
import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest

import torchdion
from torchdion.optimizer import Optimizer

PLANNING = ["torchdion.planning.machines", "torchdion.planning.plan", "torchdion.planning.table"]
MODULES = ["torchdion", "torchdion.dion", "torchdion.mixed_precision", "torchdion.routing", *PLANNING]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name):
    module = importlib.import_module(name)
    results = doctest.testmod(module)
    assert results.attempted > 0
    assert results.failed == 0


def keywords() -> dict[str, inspect.Parameter]:
    """Of the constructor, but for those unknown to it, which it refuses."""
    return {
        name: each
        for name, each in inspect.signature(torchdion.Dion).parameters.items()
        if each.kind != each.VAR_KEYWORD
    }


def test_the_docstring_names_every_option():
    described = torchdion.Dion.__doc__
    for name in keywords():
        assert re.search(rf"^        (?:\w+, )*{name}(?:, \w+)*:", described, re.MULTILINE), name


OPTIMIZERS = [each for each in vars(torchdion).values() if inspect.isclass(each) and issubclass(each, Optimizer)]
FUNCTIONS = [torchdion.param_groups, torchdion.ddp_comm_hook, torchdion.plan, torchdion.get_include]
METHODS = ("add_param_group", "step", "state_dict", "whole_state_dict", "load_state_dict", "resize_rank",
           "synchronize_for_checkpoint", "check_replicas", "synchronize_replicas", "stats")  # fmt: skip


@pytest.mark.parametrize("front", OPTIMIZERS, ids=lambda front: front.__name__)
def test_an_optimizers_docstring_has_its_source_arguments_errors_states_and_an_example(front):
    described = inspect.getdoc(front)
    assert re.search(r"arXiv \d{4}\.\d{5}|https://|nanochat", described.splitlines()[0])
    for section in ("Args:", "Raises:", "Example:"):
        assert f"\n{section}\n" in described, section
    assert "State of each parameter: ``momentum``" in described
    assert doctest.DocTestFinder().find(front)[0].examples


@pytest.mark.parametrize("name", METHODS)
def test_a_methods_docstring_names_its_arguments_and_errors(name):
    method = getattr(torchdion.Dion, name)
    described = inspect.getdoc(method)
    signature = inspect.signature(method)
    for argument in list(signature.parameters)[1:]:
        assert re.search(rf"^    (\w+, )*{argument}(, \w+)*:", described, re.MULTILINE), argument
    assert "Raises:" in described or name == "stats"


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_functions_docstring_names_its_arguments(function):
    described = inspect.getdoc(function)
    for argument in inspect.signature(function).parameters:
        assert re.search(rf"\b{argument}\b.*:", described), argument


def test_the_stubs_name_what_the_engine_has():
    tree = ast.parse((Path(torchdion.__file__).parent / "_C.pyi").read_text())
    stubbed = {node.name: node for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    present = {name for name in vars(torchdion._C) if not name.startswith("__")}
    assert set(stubbed) - {"_Enum"} == present
    for name, node in stubbed.items():
        if isinstance(node, ast.ClassDef) and name != "_Enum":
            methods = {member.name for member in node.body if isinstance(member, ast.FunctionDef)} - {"__init__"}
            assert methods <= set(dir(getattr(torchdion._C, name)))
