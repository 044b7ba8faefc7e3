"""The README's section on trainers: each of its Python blocks runs with a model and data of the reader's own."""

import re
from pathlib import Path
from typing import Any

import torch

import torchdion

README = (Path(__file__).parents[3] / "README.md").read_text()
TITLES = ("## In your trainer\n", "## On many processes\n")


def python_blocks(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def sections() -> list[str]:
    """What the tests of each trainer run."""
    return [README.split(title)[1].split("\n## ")[0] for title in TITLES]


def snippet(library: str, **names: Any) -> dict[str, Any]:
    """Runs the block that imports `library`, with `names`; returns the names after it."""
    [block] = [
        block for block in python_blocks(sections()[0]) if f"import {library}" in block or f"from {library}" in block
    ]
    namespace: dict[str, Any] = {"__name__": "readme", "torch": torch, "torchdion": torchdion, **names}
    exec(compile(block, f"README.md, {library}", "exec"), namespace)
    return namespace


def block_with(text: str) -> str:
    """The one Python block of the README that contains `text`."""
    [block] = [block for block in python_blocks(README) if text in block]
    return block
