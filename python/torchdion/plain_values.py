"""Numbers, flags and pairs of numbers as Python's own, whosever they are: NumPy's, a configuration's, a fraction."""

from collections.abc import Mapping, Set
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

from torch import Tensor

from torchdion import _C

_PLAIN = (bool, int, float, str, type(None))


def plain(value: Any) -> Any:
    """A number or a flag as Python's own, an array without dimensions as what it holds, all else as it is.

    A tensor stays what it is: steps would read it anew, or not notice that it has changed.

    >>> import numpy as np
    >>> plain(np.array(0.5)), plain(np.int64(3)), plain(np.bool_(True)), plain(Decimal("0.25"))
    (0.5, 3, True, 0.25)
    """
    if type(value) in _PLAIN or isinstance(value, Tensor):
        return value
    try:
        if getattr(value, "shape", None) == ():
            held = value.item()
            if held is None or (isinstance(held, str) and not isinstance(value, str)):
                return value  # an array of objects or of texts
            value = held
        if isinstance(value, bool) or not isinstance(value, (Real, Decimal)):
            return value
        return int(value) if isinstance(value, Integral) else float(value)
    except Exception:  # whatever a foreign class raises
        return value


def plain_numbers(value: Any) -> Any:
    """An ordered collection of numbers as a tuple, all else as it is.

    >>> import numpy as np
    >>> plain_numbers(np.array([0.5, 0.75]))
    (0.5, 0.75)
    """
    if (
        value is None
        or isinstance(value, (str, bytes, bytearray, Mapping, Set, Tensor))
        or not hasattr(value, "__len__")
    ):
        return value
    try:
        numbers = tuple(map(plain, value))
    except Exception:
        return value
    return numbers if all(type(one) in (int, float) for one in numbers) else value


def is_same(one: Any, other: Any) -> bool:
    """True if two values are equal, without waiting for a device: tensors out of its reach equal only themselves."""
    if one is other:
        return True
    if type(one) is type(other) is tuple:
        return len(one) == len(other) and all(map(is_same, one, other))
    if any(isinstance(value, Tensor) and not (value.is_cpu and _C.has_memory(value)) for value in (one, other)):
        return False
    try:
        return bool(one == other)
    except Exception:  # whatever a foreign class raises
        return False
