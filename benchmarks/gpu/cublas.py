"""Products of matrices by each of cuBLAS's ways, whichever of them torchdion takes.

`Cublas.multiply` computes C ← α A B + β C for stacks of matrices: "strided" as one call for a stack, "pointers" as one
for a list of addresses in the device's memory, "each" as one call a matrix. host_cublas.py has the three functions of
the library that it calls, on the host's memory, so that what they are told can be checked without a GPU.
"""

import ctypes
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

WAYS = ("strided", "pointers", "each")

NO_TRANSPOSE, TRANSPOSE = 0, 1
_DEFAULT_ALGORITHM = -1
TYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 14}  # cudaDataType_t
COMPUTE = {"FP32": 68, "FP64": 70, "BF16": 75, "TF32": 77}  # cublasComputeType_t

_INT, _LONG, _POINTER = ctypes.c_int, ctypes.c_longlong, ctypes.c_void_p
_SIZES = [_POINTER, _INT, _INT, _INT, _INT, _INT, _POINTER]  # handle, operations, m, n, k, alpha
_OPERAND, _STACK = [_POINTER, _INT, _INT], [_POINTER, _INT, _INT, _LONG]
FUNCTIONS: dict[str, list[Any]] = {
    "cublasGemmEx": [*_SIZES, *_OPERAND, *_OPERAND, _POINTER, *_OPERAND, _INT, _INT],
    "cublasGemmBatchedEx": [*_SIZES, *_OPERAND, *_OPERAND, _POINTER, *_OPERAND, _INT, _INT, _INT],
    "cublasGemmStridedBatchedEx": [*_SIZES, *_STACK, *_STACK, _POINTER, *_STACK, _INT, _INT, _INT],
}


def loaded_cublas() -> ctypes.CDLL:
    """The library that torch has loaded into this process: another would have handles of its own."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    found = re.search(r"\S*/libcublas\.so\S*", maps)
    if not found:
        raise RuntimeError("torch has loaded no libcublas")
    library = ctypes.CDLL(found[0])
    for name, types in FUNCTIONS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = types, _INT
    return library


class _Operand(NamedTuple):
    """A stack as cuBLAS, which goes by columns, sees it."""

    operation: int
    address: int
    leading: int
    stride: int
    dtype: torch.dtype


def _operand(stack: Tensor) -> _Operand:
    """A row-major matrix is, by columns, its transpose: what a product in the other order is to have."""
    row_major = stack.stride(2) == 1
    if not row_major and stack.stride(1) != 1:
        raise ValueError(f"neither rows nor columns are contiguous in strides {stack.stride()}")
    operation, leading = (NO_TRANSPOSE, stack.stride(1)) if row_major else (TRANSPOSE, stack.stride(2))
    return _Operand(operation, stack.data_ptr(), leading, stack.stride(0), stack.dtype)


class Cublas:
    def __init__(self, library: Any, handle: Callable[[], int]) -> None:
        self.library = library
        self.handle = handle

    def multiply(
        self, way: str, C: Tensor, A: Tensor, B: Tensor, alpha: float, beta: float, arithmetic: str
    ) -> Callable[[], None]:
        """A function that computes C ← α A B + β C of stacks, by operands that are described now."""
        if C.stride(2) != 1:
            return self.multiply(way, C.mT, B.mT, A.mT, alpha, beta, arithmetic)
        first, second, result = _operand(B), _operand(A), _operand(C)
        scalar = ctypes.c_double if arithmetic == "FP64" else ctypes.c_float
        factors = ctypes.pointer(scalar(alpha)), ctypes.pointer(scalar(beta))
        sizes = (first.operation, second.operation, C.shape[2], C.shape[1], A.shape[2])
        operands = (first, second, result)
        ending = (COMPUTE[arithmetic], _DEFAULT_ALGORITHM)
        count = C.shape[0]

        def call(function: str, handle: int, described: Sequence[tuple[int, ...]], *rest: int) -> None:
            a, b, c = described
            run = getattr(self.library, function)
            status = run(handle, *sizes, factors[0], *a, *b, factors[1], *c, *rest, *ending)
            if status != 0:
                raise RuntimeError(f"{function} returned status {status}")

        if way == "strided":
            described = [(x.address, TYPES[x.dtype], x.leading, x.stride) for x in operands]
            return lambda: call("cublasGemmStridedBatchedEx", self.handle(), described, count)
        if way == "pointers":
            lists = [self._addresses(x, count, C.device) for x in operands]

            def by_lists() -> None:  # which keeps the lists
                described = [
                    (memory.data_ptr(), TYPES[x.dtype], x.leading) for memory, x in zip(lists, operands, strict=True)
                ]
                call("cublasGemmBatchedEx", self.handle(), described, count)

            return by_lists
        single = [
            [(x.address + i * x.stride * x.dtype.itemsize, TYPES[x.dtype], x.leading) for x in operands]
            for i in range(count)
        ]

        def one_by_one() -> None:
            handle = self.handle()
            for each in single:
                call("cublasGemmEx", handle, each)

        return one_by_one

    @staticmethod
    def _addresses(operand: _Operand, count: int, device: torch.device) -> Tensor:
        step = operand.stride * operand.dtype.itemsize
        return torch.tensor([operand.address + i * step for i in range(count)], dtype=torch.int64, device=device)
