"""Every file that a comment, a docstring or a page names is there."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = (".ci", "benchmarks", "cmake", "csrc", "docs", "examples", "include", "python", "release", "tests")
KINDS = {".py", ".pyi", ".cpp", ".h", ".cu", ".cmake", ".md", ".rst", ".txt", ".toml", ".sh", ".json", ".svg"}
NAMED = re.compile(
    r"(?<![\w/.<{}*:-])((?:\.\./)*[\w.-]+(?:/[\w.-]+)*\.(?:py|pyi|cpp|h|cu|cmake|md|rst|toml|sh|json|svg))(?![\w/(])"
)
PLACEHOLDER = re.compile(r"NAME|FILE|\bmine\.|\btest_x\.")  # of a file of a reader's own

# Files of torch, CUDA and NCCL, and files that an installation writes.
OF_OTHERS = {
    "ATen/core/Tensor.h",
    "Caffe2Targets.cmake",
    "_build.json",
    "nccl.h",
    "torch/extension.h",
    "torch/torch.h",
    "version.py",
}


def is_ours(path: Path) -> bool:
    parts = path.relative_to(ROOT).parts
    return not {"__pycache__", "runs", "lib", "share"} & set(parts) and parts[:3] != (
        "python", "torchdion", "include"
    )  # fmt: skip


FILES = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in KINDS and is_ours(path)]
FILES += [path for path in ROOT.iterdir() if path.suffix in KINDS]
ENDS = {"/".join(path.relative_to(ROOT).parts[i:]) for path in FILES for i in range(len(path.relative_to(ROOT).parts))}
"""Each file's path, and what is left of it without its first folders."""

SOURCES = [path for path in FILES if path.suffix not in {".json", ".svg", ".toml"} and "results" not in path.parts]


def words(path: Path) -> Iterator[str]:
    """The text for readers: comments, docstrings, pages without their blocks of code."""
    text = path.read_text()
    if path.suffix in {".py", ".pyi"}:
        yield from (
            t.string for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type == tokenize.COMMENT
        )
        statements = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr))
        yield from (node.value for node in statements if isinstance(node, ast.Constant) and isinstance(node.value, str))
    elif path.suffix in {".cpp", ".h", ".cu"}:
        yield from re.findall(r"//.*", text)
    elif path.suffix in {".md", ".rst"}:
        yield re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    else:
        yield from re.findall(r"#.*", text)


def missing(path: Path) -> list[str]:
    named = {name for said in words(path) for name in NAMED.findall(said)}
    return [
        name
        for name in sorted(named)
        if re.sub(r"^(\.\./)+", "", name) not in ENDS | OF_OTHERS and not PLACEHOLDER.search(name)
    ]


@pytest.mark.parametrize("folder", [*FOLDERS, ""])
def test_every_file_that_is_named_is_there(folder: str) -> None:
    here = [path for path in SOURCES if (path.relative_to(ROOT).parts[0] if path.parent != ROOT else "") == folder]
    assert here
    assert {str(path.relative_to(ROOT)): missing(path) for path in here if missing(path)} == {}


def test_names_are_found_in_comments_docstrings_and_pages(tmp_path: Path) -> None:
    texts = {
        "a.py": '"""As csrc/gone.cpp says."""\nx = "not/said.py"  # see tests/gone.py',
        "a.cpp": 'auto x = "not/said.h";  // gone.h is where',
        "a.md": "[here](gone.md), `../gone.py`, and csrc/README.md\n```python\n# not/said.py\n```\n",
        "a.cmake": "set(x not/said.cmake)  # cmake/gone.cmake",
    }
    expected = {
        "a.py": ["csrc/gone.cpp", "tests/gone.py"],
        "a.cpp": ["gone.h"],
        "a.md": ["../gone.py", "gone.md"],
        "a.cmake": ["cmake/gone.cmake"],
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    assert {name: missing(tmp_path / name) for name in texts} == expected
