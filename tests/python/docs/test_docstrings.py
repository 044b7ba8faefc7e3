"""Docstrings have examples that run and name every option, and the stubs name what the engine has."""

import ast
import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest

import torchdion

PLANNING = ["torchdion.planning.machines", "torchdion.planning.names", "torchdion.planning.plan"]
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


def test_the_stubs_name_what_the_engine_has():
    tree = ast.parse((Path(torchdion.__file__).parent / "_C.pyi").read_text())
    stubbed = {node.name: node for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    present = {name for name in vars(torchdion._C) if not name.startswith("__")}
    assert set(stubbed) - {"_Enum"} == present
    for name, node in stubbed.items():
        if isinstance(node, ast.ClassDef) and name != "_Enum":
            methods = {member.name for member in node.body if isinstance(member, ast.FunctionDef)} - {"__init__"}
            assert methods <= set(dir(getattr(torchdion._C, name)))
