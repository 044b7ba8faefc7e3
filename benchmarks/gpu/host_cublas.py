"""The functions of cuBLAS that cublas.py calls, on the host's memory: their arguments mean what the real ones' do."""

import ctypes
from typing import Any

import torch
from cublas import COMPUTE, FUNCTIONS, TRANSPOSE, TYPES
from torch import Tensor


class HostCublas:
    """The library's functions on the host's memory; their arguments are those of the real ones."""

    def cublasGemmEx(self, *arguments: Any) -> int:
        self._multiply(self._typed("cublasGemmEx", arguments), stack=False)
        return 0

    def cublasGemmStridedBatchedEx(self, *arguments: Any) -> int:
        self._multiply(self._typed("cublasGemmStridedBatchedEx", arguments), stack=True)
        return 0

    def cublasGemmBatchedEx(self, *arguments: Any) -> int:
        given = self._typed("cublasGemmBatchedEx", arguments)
        count = given[17]
        lists = [(ctypes.c_int64 * count).from_address(given[place]) for place in (7, 10, 14)]
        for a, b, c in zip(*lists, strict=True):
            one = (*given[:7], a, *given[8:10], b, *given[11:14], c, *given[15:17], *given[18:])
            self._multiply(one, stack=False)
        return 0

    @staticmethod
    def _typed(name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """As ctypes would pass them on: a wrong number or kind of arguments is an error."""
        types = FUNCTIONS[name]
        if len(arguments) != len(types):
            raise TypeError(f"{name} takes {len(types)} arguments, got {len(arguments)}")
        return tuple(map(_passed, arguments, types))

    @staticmethod
    def _multiply(given: tuple[Any, ...], stack: bool) -> None:
        _, op_a, op_b, m, n, k, alpha, *rest = given
        width = 4 if stack else 3
        a, b, (beta, *c) = rest[:width], rest[width : 2 * width], rest[2 * width : 3 * width + 1]
        count, compute = (rest[3 * width + 1], rest[3 * width + 2]) if stack else (1, rest[3 * width + 1])
        scalar = ctypes.c_double if compute == COMPUTE["FP64"] else ctypes.c_float

        def matrices(operand: list[int], rows: int, cols: int, transposed: bool) -> Tensor:
            shape = (cols, rows) if transposed else (rows, cols)
            stored = _by_columns(operand, count, *shape)
            return stored.mT if transposed else stored

        A, B = matrices(a, m, k, op_a == TRANSPOSE), matrices(b, k, n, op_b == TRANSPOSE)
        C = matrices(c, m, n, False)
        factors = [scalar.from_address(address).value for address in (alpha, beta)]
        C.copy_(torch.baddbmm(C.double(), A.double(), B.double(), alpha=factors[0], beta=factors[1]))


def _by_columns(operand: list[int], count: int, rows: int, cols: int) -> Tensor:
    address, code, leading, *stride = operand
    dtype = next(dtype for dtype, known in TYPES.items() if known == code)
    step = stride[0] if stride else 0
    numel = (count - 1) * step + (cols - 1) * leading + rows
    memory = (ctypes.c_char * (numel * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).as_strided((count, rows, cols), (step, 1, leading))


def _passed(argument: Any, kind: Any) -> int:
    """A number of the kind that is asked for, or an address."""
    if kind is ctypes.c_void_p and not isinstance(argument, int):
        return ctypes.cast(argument, ctypes.c_void_p).value or 0
    return int(kind(argument).value or 0)
