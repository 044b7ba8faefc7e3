"""Frozen parameters with which no step can compute: quantized weights, tables, rotations, masks."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import Parameter

KINDS: dict[str, tuple[Callable[[Tensor], Tensor], type[Exception], str]] = {
    "uint8": (lambda t: t.to(torch.uint8), ValueError, r"must be real floating-point, got torch\.uint8"),
    "int64": (Tensor.long, ValueError, r"must be real floating-point, got torch\.int64"),
    "uint16": (lambda t: t.to(torch.uint16), ValueError, r"must be real floating-point, got torch\.uint16"),
    "bool": (Tensor.bool, ValueError, r"must be real floating-point, got torch\.bool"),
    "float8": (lambda t: t.to(torch.float8_e5m2), ValueError, r"must be real floating-point, got torch\.float8_e5m2"),
    "complex": (lambda t: t.to(torch.complex64), ValueError, r"must be real floating-point, got torch\.complex64"),
    "meta": (lambda t: t.to("meta"), NotImplementedError, "is on meta, which this build has no kernels for"),
    "sparse": (Tensor.to_sparse, ValueError, r"must be dense, got torch\.sparse_coo"),
    "rows of a sparse one": (Tensor.to_sparse_csr, ValueError, r"must be dense, got torch\.sparse_csr"),
    "jagged": (
        lambda t: torch.nested.nested_tensor([t, t], layout=torch.jagged),
        ValueError,
        "must be dense, got nested",
    ),
}
"""Kind → how a matrix becomes one, and how it is refused where it has a gradient."""

WITHOUT_GRADIENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "nested": lambda t: torch.nested.nested_tensor([t, t]),
    "uint4": lambda t: t.to(torch.uint8).view(torch.uint4),
}
"""Kinds to which torch assigns no gradient, or of which it makes no other tensor."""


def frozen(kind: str, shape: tuple[int, ...] = (6, 4), fill: float = 1.0) -> Parameter:
    make = KINDS[kind][0] if kind in KINDS else WITHOUT_GRADIENTS[kind]
    return Parameter(make(torch.full(shape, fill)), requires_grad=False)
