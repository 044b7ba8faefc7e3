"""Wrapper subclasses of every kind: tensors without memory of their own."""

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

aten = torch.ops.aten


class Wrapped(torch.Tensor):
    """Knows detach() and view() alone, which nn.Parameter and DTensor need."""

    taken: ClassVar[tuple[Any, ...]] = (aten.detach.default, aten.view.default)

    @staticmethod
    def __new__(cls, inner: Tensor, **_: Any) -> "Wrapped":
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=inner.device
        )

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return f"{type(self).__name__}({tuple(self.shape)})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in cls.taken:
            raise NotImplementedError(f"{cls.__name__} knows no {func}")
        kwargs = kwargs or {}
        result = func(*tree_map_only(cls, lambda t: t.inner, args), **tree_map_only(cls, lambda t: t.inner, kwargs))
        if func in (aten.detach.default, aten.view.default, aten.clone.default):
            return cls(result)
        return args[0] if func is aten.copy_.default else result


class Refusing(Wrapped):
    """Can neither be read nor written."""


class Showing(Wrapped):
    """Shows what is inside, and does nothing else."""

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], meta: None, size: Any, stride: Any) -> "Showing":
        return Showing(inner["inner"])


class Copying(Wrapped):
    """Takes copy_(), both ways, and clones."""

    taken = (aten.detach.default, aten.view.default, aten.copy_.default, aten.clone.default)


class OnlyCopying(Wrapped):
    """Takes copy_() alone."""

    taken = (aten.detach.default, aten.view.default, aten.copy_.default)


class Dropping(Wrapped):
    """Forgets what copy_() writes, as a class does that unwraps by making new tensors."""

    taken = (aten.detach.default, aten.view.default, aten.copy_.default, aten.clone.default)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten.copy_.default and isinstance(args[0], cls):
            return args[0]
        return super().__torch_dispatch__(func, types, args, kwargs)


class ReadOnly(Wrapped):
    """Is copied from and cloned into plain tensors, and takes no copy_()."""

    taken = (aten.detach.default, aten.view.default, aten.copy_.default, aten.clone.default)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten.clone.default:
            return args[0].inner.clone()
        if func is aten.copy_.default and isinstance(args[0], cls):
            raise NotImplementedError("read only")
        return super().__torch_dispatch__(func, types, args, kwargs)


class Narrowed(Copying):
    """Looks like FP32, and shows the BF16 inside that keeps its numbers."""

    @staticmethod
    def __new__(cls, inner: Tensor, **_: Any) -> "Narrowed":
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=torch.float32, device=inner.device
        )

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner.bfloat16()

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None


class Halved(Wrapped):
    """Shows a tensor inside that looks like it but has half its values."""

    taken = (aten.detach.default, aten.view.default, aten.copy_.default, aten.clone.default)

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not aten.copy_.default:
            return super().__torch_dispatch__(func, types, args, kwargs)
        target, source = args
        numbers = source.inner * 2 if isinstance(source, cls) else source
        (target.inner if isinstance(target, cls) else target).copy_(numbers / 2 if isinstance(target, cls) else numbers)
        return target
