"""What the documentation shows runs: docstring examples, the README's Python, and the stubs."""

import ast
import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest
import torch
from trainer_readme import README, python_blocks, sections

import torchdion

PLANNING = ["torchdion.planning.machines", "torchdion.planning.names", "torchdion.planning.plan"]
MODULES = ["torchdion", "torchdion.dion", "torchdion.mixed_precision", "torchdion.routing", *PLANNING]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name):
    module = importlib.import_module(name)
    results = doctest.testmod(module)
    assert results.attempted > 0
    assert results.failed == 0


def test_the_readme_runs_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rest = README
    for section in sections():
        rest = rest.replace(section, "")
    blocks = python_blocks(rest)
    assert blocks
    namespace: dict[str, object] = {"__name__": "readme"}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), namespace)


def readme_table(first_column: str) -> dict[str, str]:
    """The first two columns of a table of the README."""
    rows = README.split(f"| {first_column} | default |")[1].split("\n\n")[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", rows, re.MULTILINE))


def keywords() -> dict[str, inspect.Parameter]:
    """Of the constructor, but for those unknown to it, which it refuses."""
    return {
        name: each
        for name, each in inspect.signature(torchdion.Dion).parameters.items()
        if each.kind != each.VAR_KEYWORD
    }


def test_the_readme_names_every_option_with_its_default():
    parameters = keywords()
    documented = readme_table("option")
    for name, default in documented.items():
        assert ast.literal_eval(default.strip("`")) == parameters[name].default
    elsewhere = {"params", "capturable", "precision", "replicate_mesh_grad_sync"}
    meshes = {"replicate_mesh", "outer_shard_mesh", "inner_shard_mesh"}
    assert set(parameters) - elsewhere - meshes == set(documented)


def test_the_readme_names_every_group_key_with_its_default():
    defaults = torchdion.Dion([torch.nn.Parameter(torch.zeros(2, 2))]).defaults
    for name, default in readme_table("group key").items():
        assert ast.literal_eval(default.strip("`")) == defaults[name]


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
