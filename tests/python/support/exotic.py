"""Values that no one should give to an optimizer, drawn at random: options of wrong types, odd tensors."""

import math
import random
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor
from wrapped import Copying, Dropping, Halved, Narrowed, OnlyCopying, ReadOnly, Refusing, Showing

SHAPES: list[tuple[int, ...]] = [(6, 4), (3, 5, 4), (7,), (8,), (5, 4), (), (1,), (0, 4), (4, 6), (2, 3, 4, 5)]


def freed(tensor: Tensor) -> Tensor:
    tensor = tensor.clone()
    tensor.untyped_storage().resize_(0)
    return tensor


def shortened(tensor: Tensor) -> Tensor:
    tensor = tensor.clone()
    tensor.untyped_storage().resize_(max(0, tensor.untyped_storage().nbytes() - 1))
    return tensor


def inside_of_vmap(tensor: Tensor) -> Tensor:
    """As it escapes from torch.func, where there is nothing but a wrapper of an ended level."""
    kept: list[Tensor] = []
    torch.vmap(lambda t: (kept.append(t), t)[1])(tensor.expand(2, *tensor.shape))
    return kept[0]


KINDS: dict[str, Callable[[Tensor], Any]] = {
    "plain": torch.clone,
    "double": torch.Tensor.double,
    "half": torch.Tensor.half,
    "float8": lambda t: t.to(torch.float8_e4m3fn),
    "int": torch.Tensor.int,
    "bool": torch.Tensor.bool,
    "complex": lambda t: t.to(torch.complex64),
    "meta": lambda t: t.to("meta"),
    "sparse": torch.Tensor.to_sparse,
    "nested": lambda t: torch.nested.nested_tensor([t, t]),
    "jagged": lambda t: torch.nested.nested_tensor([t.reshape(-1, 1)] * 2, layout=torch.jagged),
    "quantized": lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.quint8),
    "expanded": lambda t: t.reshape(-1)[:1].sum().expand(t.shape),
    "overlapping": lambda t: torch.zeros(t.numel() + 8).as_strided(t.shape, [1] * t.dim()),
    "transposed": lambda t: t.mT.contiguous().mT if t.dim() > 1 else t,
    "negated": lambda t: torch._neg_view(-t),
    "zeros without memory": lambda t: torch._efficientzerotensor(t.shape),
    "tracked": lambda t: t.clone().requires_grad_(),
    "not a leaf": lambda t: t.clone().requires_grad_() * 2,
    "lazy copy": torch._lazy_clone,
    "freed": freed,
    "shortened": shortened,
    "functional": torch._to_functional_tensor,
    "inside of vmap": inside_of_vmap,
    "fake": lambda t: FakeTensorMode().from_tensor(t),
    "two": lambda t: TwoTensor(t, t.clone()),
    "two that differ": lambda t: TwoTensor(t, t + 1),
    "two of two": lambda t: TwoTensor(TwoTensor(t, t.clone()), TwoTensor(t.clone(), t.clone())),
    "two fake": lambda t: TwoTensor(*[FakeTensorMode().from_tensor(t)] * 2),
    "subclass": lambda t: t.as_subclass(type("Sub", (Tensor,), {})),
    **{kind.__name__: kind for kind in (Copying, Dropping, Halved, Narrowed, OnlyCopying, ReadOnly, Refusing, Showing)},
}


def tensor(draw: random.Random, shape: tuple[int, ...]) -> Tensor:
    """Of a random kind; mostly of this shape."""
    if draw.random() < 0.15:
        shape = draw.choice(SHAPES)
    while True:
        numbers = torch.full(shape, draw.choice([0.0, 1.0, 0.5, -3.0, 1e30, math.nan, math.inf]))
        try:
            made: Tensor = KINDS[draw.choice(list(KINDS))](numbers)
        except (RuntimeError, ValueError, NotImplementedError, IndexError):  # torch makes none of this shape
            continue
        return made


class Hostile:
    """Equal to nothing, true of nothing, and of no length."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not to be compared")

    def __bool__(self) -> bool:
        raise RuntimeError("neither true nor false")

    __hash__ = None  # type: ignore[assignment]


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("not to be printed")


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def in_itself() -> list[Any]:
    value: list[Any] = [1]
    value.append(value)
    return value


VALUES: list[Callable[[], Any]] = [
    lambda: None,
    lambda: True,
    lambda: -1,
    lambda: 0,
    lambda: 3,
    lambda: 2**70,
    lambda: 10**400,
    lambda: -(10**5000),
    lambda: 0.5,
    lambda: -0.1,
    lambda: math.nan,
    lambda: math.inf,
    lambda: 1j,
    lambda: "right",
    lambda: "raise",
    lambda: "adamw",
    lambda: "bfloat16",
    lambda: "",
    lambda: "0.1",
    lambda: "two\nlines of 10,000 characters" * 400,
    lambda: b"dion",
    lambda: Fraction(1, 2),
    lambda: Decimal("0.5"),
    list,
    dict,
    tuple,
    lambda: (0.9, 0.95),
    lambda: [0.9, "0.95"],
    lambda: (0.9, 2.0),
    lambda: {0.5},
    object,
    Hostile,
    Unprintable,
    lambda: nested(5000),
    in_itself,
    lambda: {"state": None},
    lambda: torch.float16,
    lambda: torch.int8,
    lambda: torch.ones(2),
    lambda: torch.ones(40, 40),
    lambda: torch.tensor(0.5),
    lambda: numpy.float32(0.5),
    lambda: numpy.array([0.1, 0.2]),
    lambda: numpy.int64(2),
    lambda: numpy.bool_(True),
    lambda: numpy.float64("nan"),
    lambda: numpy.longdouble("1e4000"),
    lambda: numpy.complex64(1j),
    lambda: numpy.array("0.5"),
    lambda: numpy.array(None),
    lambda: numpy.datetime64("2026-01-01"),
    lambda: range(2),
    lambda: len,
]


KEYS: list[Callable[[], Any]] = [
    lambda: None,
    lambda: True,
    lambda: -1,
    lambda: 7,
    lambda: 2**70,
    lambda: -(10**5000),
    lambda: 0.0,
    lambda: math.nan,
    lambda: "0",
    lambda: "lr",
    lambda: b"params",
    lambda: (0, 1),
    object,
    Unprintable,
    lambda: torch.float32,
    lambda: torch.ones(2),
    lambda: numpy.int64(1),
    lambda: numpy.float32(2),
]


def value(draw: random.Random) -> Any:
    return tensor(draw, ()) if draw.random() < 0.2 else draw.choice(VALUES)()


def key(draw: random.Random) -> Any:
    """Whatever can be in a dictionary."""
    return draw.choice(KEYS)()
