"""How a sentence speaks to the program that called, and shows what it has given."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch

from torchdion import _C

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

front = _C.front
"""The class or function that the program called: every sentence begins with it."""

LONGEST = 200
"""Characters of one value in a sentence."""


@contextmanager
def speaking_as(title: str) -> Iterator[None]:
    """Sentences, also those of the engine, begin with this title in here."""
    before = _C.front(title)
    try:
        yield
    finally:
        _C.front(before)


def speaking(method: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """A public method, whose sentences begin with the ``title`` of the class."""

    @wraps(method)
    def spoken(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with speaking_as(args[0].title):  # type: ignore[attr-defined]
            return method(*args, **kwargs)

    return spoken


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
