"""How a sentence shows what a program has given."""

from typing import Any

import torch

from torchdion import _C

LONGEST = 200
"""Characters of one value in a sentence."""


def shown(value: Any) -> str:
    """A value in an error: on one line, and not all of a long one.

    The numbers of a tensor without memory are not looked at: torch would read them.

    >>> shown("right")
    "'right'"
    >>> shown(10**5000)  # of more digits than Python prints
    'a value of type int'
    """
    if isinstance(value, torch.Tensor) and not _C.has_memory(value):
        return f"a {type(value).__name__} without memory"
    try:
        return shortened(repr(value))
    except Exception:  # whatever a foreign class raises
        return f"a value of type {type(value).__name__}"


def shortened(text: str) -> str:
    """On one line, and not all of a long one."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}…"
