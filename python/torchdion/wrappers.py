"""Tensors without memory of their own: wrapper subclasses, which keep their numbers in other tensors.

torchao's float8 and int8 weights are such, also as the local tensors of DTensors. The engine reads and writes memory:
what has none is read as a plain copy, and written through the tensor inside or by ``copy_()``.
"""

import sys
from collections.abc import Callable, MutableMapping
from contextlib import suppress

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from torchdion import _C
from torchdion.dtensor import is_plain
from torchdion.words import front


def has_memory(tensor: Tensor) -> bool:
    """Whether the engine may be given the tensor; of plain ones, which cost nothing here, it asks for itself."""
    return is_plain(tensor) or _C.has_memory(tensor)


def readable(tensor: Tensor, what: str) -> Tensor:
    """The tensor, or its numbers in plain memory.

    Raises:
        ValueError: it gives none; the sentence begins with ``what``.
    """
    if has_memory(tensor):
        return tensor
    inside = _inside(tensor, what)
    plain = _copy_of(tensor)
    if plain is None and len(inside) == 1:
        return inside[0]
    if plain is None:
        raise ValueError(
            f"{front()}: {what} must have memory of its own or be read by copy_(), got a {type(tensor).__name__}"
        )
    return plain


def is_freed(tensor: Tensor) -> bool:
    """Whether a plain tensor has no memory: one on the Meta device, of freed storage or inside of torch.func."""
    return is_plain(tensor) and not _C.has_memory(tensor)


def check_plain(tensor: Tensor, what: str) -> None:
    """Raises ValueError for a state that is no plain tensor: torchdion makes plain ones."""
    if tensor.is_nested or not has_memory(tensor):
        raise ValueError(f"{front()}: {what} must have memory of its own, got a {type(tensor).__name__}")


class Writes:
    """Tensors that stand in for what has no memory, until :meth:`finish`."""

    def __init__(self) -> None:
        self._copies: list[tuple[Tensor, Tensor]] = []
        self._inside: list[Tensor] = []

    def to(self, tensor: Tensor, what: str) -> Tensor:
        """The tensor, the one inside of it, or a plain copy that :meth:`finish` writes back.

        Raises:
            ValueError: it can neither be written in place nor takes ``copy_()``. Its values are what they were.
        """
        if has_memory(tensor):
            return tensor
        inside = _inside(tensor, what)
        is_proven = _PROVEN.get(tensor) == "inside" and len(inside) == 1
        plain = None if is_proven else _copy_of(tensor)
        if len(inside) == 1 and (plain is None or _are_equal(inside[0], plain)):
            _PROVEN[tensor] = "inside"
            self._inside.append(tensor)
            return inside[0]
        if plain is None or (_PROVEN.get(tensor) != "copies" and not _takes_copies(tensor, plain)):
            raise ValueError(
                f"{front()}: {what} must have memory of its own, show one tensor of its shape and dtype inside "
                f"(__tensor_flatten__) or take copy_() from a plain tensor, got a {type(tensor).__name__}"
            )
        _PROVEN[tensor] = "copies"
        self._copies.append((tensor, plain))
        return plain

    def clear(self) -> None:
        self._copies.clear()
        self._inside.clear()

    def has_any(self) -> bool:
        return bool(self._copies or self._inside)

    @torch.no_grad()
    def finish(self) -> None:
        """Writes to what has no memory, and lets a later backward() see that all of them have changed."""
        for tensor, plain in self._copies:
            tensor.copy_(plain)
        torch.autograd.graph.increment_version([tensor for tensor in self._inside if not tensor.is_inference()])


_PROVEN: MutableMapping[Tensor, str] = WeakIdKeyDictionary()
"""How each wrapper is written, since it was found out: "inside" or "copies"."""


def _inside(tensor: Tensor, what: str) -> list[Tensor]:
    """The tensors that a wrapper is made of and that are as it is; a scale or bytes of 8 bits are not.

    Raises:
        ValueError: there are several, and they differ: no one tensor has the values of all.
    """
    flatten: Callable[[], tuple[list[str], object]] | None = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None or _is_fake(tensor):
        return []
    parts = [getattr(tensor, name, None) for name in flatten()[0]]
    alike = [
        part
        for part in parts
        if isinstance(part, Tensor)
        and (part.shape, part.dtype, part.device) == (tensor.shape, tensor.dtype, tensor.device)
        and _C.has_memory(part)
    ]
    if not all(_are_equal(alike[0], other) for other in alike[1:]):
        raise ValueError(
            f"{front()}: {what} must have one value for each entry, got a {type(tensor).__name__} of "
            f"{len(alike)} tensors that differ"
        )
    return alike


@torch.no_grad()
def _copy_of(tensor: Tensor) -> Tensor | None:
    """Its numbers in plain memory, where it gives them."""
    if _is_fake(tensor):
        return None
    try:
        plain = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        plain.copy_(tensor)
    except Exception:  # whatever a foreign class raises
        return None
    return plain if _C.has_memory(plain) else None


@torch.no_grad()
def _takes_copies(tensor: Tensor, plain: Tensor) -> bool:
    """Tried with other numbers on a clone; where it has no clones, with its own ones."""
    target, numbers = tensor, plain
    with suppress(Exception):  # whatever a foreign class raises
        trial = tensor.detach().clone()
        if type(trial) is type(tensor):
            target, numbers = trial, -1 - plain.nan_to_num()
    try:
        target.copy_(numbers)
    except Exception:
        return False
    written = _copy_of(target)
    if written is None or target is tensor:
        return written is not None and _are_equal(written, plain)
    largest = numbers.abs().amax() if numbers.numel() else numbers.sum()
    return bool((written - numbers).abs().le(largest / 4).all())  # int8 and float8 round


def _are_equal(one: Tensor, other: Tensor) -> bool:
    return one is other or torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


def _is_fake(tensor: Tensor) -> bool:
    module = sys.modules.get("torch._subclasses.fake_tensor")
    return module is not None and isinstance(tensor, module.FakeTensor)
