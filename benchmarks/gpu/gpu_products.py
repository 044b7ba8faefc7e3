"""The four products of a step by themselves, by each way that cuBLAS has and as torchdion computes them.

    python benchmarks/gpu/gpu_products.py [--list 120m 1.3b] [--rounds 10] [--seconds 110]

JSON lines of `kind` "product", of `count` matrices of m×n at once, as a step with these lists and FP32 states has them:

    precision    "high": FP32 operands, which tensor cores read in TF32; "medium": BF16 operands, P stored in BF16 and
                 the others in FP32
    product      as the paper writes it; the default orientation runs on transposed matrices, so M is n×m here
    method       "strided": one call for matrices at equal distances; "pointers": one call for a list of addresses;
                 "each": one call a matrix; "torchdion": torch.ops.torchdion.gemm_, with what it does beside the product
    ms           of one among many that follow each other without a wait
    over_limit   that over the longer of arithmetic and traffic, at the rates measured in the same run
    of_copy_rate bytes read and written a second, over those of a copy in the same run

Then, after everything was timed, the same products under torch's profiler: rows of `kind` "product kernel" with the
names of what ran, and `device_ms`, the time of all that ran without what lies between: where matrices are small, "each"
waits for the host.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from cublas import WAYS
from gpu_lists import LISTS, RANKS, batches_of
from machine import Machine, Rates, machine_row, open_machine, parser_of
from measure import emit
from torch import Tensor

import torchdion  # registers torch.ops.torchdion

SHOWN_RANKS = ("d/4", "d/16")
METHODS = (*WAYS, "torchdion")
PRECISIONS = ("high", "medium")
MU, LR, KEEP = 0.95, 1e-3, 1 - 1e-5
SIZE = ("count", "m", "n", "r")
Size = tuple[int, int, int, int]


class Product(NamedTuple):
    """C ← α A B + β C of stacks."""

    C: Tensor
    A: Tensor
    B: Tensor
    alpha: float
    beta: float
    precision: str

    @property
    def nbytes(self) -> int:
        """Read and written."""
        return self.A.nbytes + self.B.nbytes + self.C.nbytes * (2 if self.beta else 1)

    def least_ms(self, rates: Rates) -> float:
        operations = 2 * self.C.numel() * self.A.shape[-1]
        rate = rates.bf16 if self.precision == "medium" else rates.tf32
        return 1e3 * max(operations / rate, self.nbytes / rates.copy)

    def runner(self, machine: Machine, method: str) -> Callable[[], object]:
        C, A, B, alpha, beta, precision = self
        if method != "torchdion":
            arithmetic = "TF32" if precision == "high" else "FP32"  # of sums: BF16 operands are rounded no further
            return machine.cublas().multiply(method, C, A, B, alpha, beta, arithmetic)
        lists = [list(stack) for stack in (C, A, B)]
        return partial(torch.ops.torchdion.gemm_, *lists, alpha, beta, precision=precision)


def products_of(machine: Machine, precision: str, count: int, m: int, n: int, r: int) -> dict[str, Product]:
    """The products of a step on m×n matrices in the default orientation."""
    dtype = torch.bfloat16 if precision == "medium" else torch.float32

    def stack(rows: int, cols: int, dtype: torch.dtype) -> Tensor:
        return torch.randn(count, rows, cols, device=machine.device, dtype=dtype)

    X, M = (stack(m, n, torch.float32).mT for _ in range(2))
    B = M if precision == "high" else M.to(dtype)  # what is factored
    Q, R = (stack(m, r, dtype) for _ in range(2))
    P = stack(n, r, dtype)
    P *= (n * r) ** -0.5  # M, updated again and again, stays finite
    terms = {
        "P = M Q": (torch.empty_like(P), B, Q, 1.0, 0.0),
        "R = Mᵀ P": (torch.empty_like(R, dtype=torch.float32), B.mT, P, 1.0, 0.0),
        "M ← M − (1−μ) P Rᵀ": (M, P, R.mT, MU - 1, 1.0),
        "X ← keep X − lr P Qᵀ": (X, P, Q.mT, -LR, KEEP),
    }
    return {name: Product(*of_one, precision) for name, of_one in terms.items()}


def timed_rows(machine: Machine, precision: str, size: Size, rates: Rates, rounds: int) -> Iterator[dict[str, Any]]:
    for name, product in products_of(machine, precision, *size).items():
        for method in METHODS:
            run = product.runner(machine, method)
            run()
            ms, times = machine.back_to_back_ms(run, rounds, budget_ms=100)
            shares = {
                "over_limit": ms / product.least_ms(rates),
                "of_copy_rate": product.nbytes / (1e-3 * ms * rates.copy),
            }
            yield {"product": name, "method": method, "ms": ms, "rounds": times, **shares}


def kernel_rows(machine: Machine, precision: str, size: Size) -> Iterator[dict[str, Any]]:
    for name, product in products_of(machine, precision, *size).items():
        for method in METHODS:
            kernels = machine.kernels(product.runner(machine, method))
            names = [f"{kernel.launches}× {kernel.name}" for kernel in sorted(kernels, key=lambda kernel: -kernel.ms)]
            device_ms = sum(kernel.ms for kernel in kernels)
            yield {"product": name, "method": method, "kernels": names, "device_ms": device_ms}


def main(arguments: list[str]) -> int:
    assert torchdion.__version__
    given = parser_of(__doc__, ["1.3b", "120m"], 110.0).parse_args(arguments)
    machine = open_machine(given, "gpu_products.py")
    rates = machine.rates()
    emit(machine_row(machine, rates, program="products"))
    cases = [
        ({"list": name, "rank": rank, "precision": precision, **dict(zip(SIZE, size, strict=True))}, precision, size)
        for name in given.list
        for rank in SHOWN_RANKS
        for precision in PRECISIONS
        for size in batches_of(LISTS[name](), RANKS[rank])
    ]
    for labels, precision, size in cases:
        rows = timed_rows(machine, precision, size, rates, given.rounds)
        machine.attempt({"kind": "product", **labels}, rows)
    for labels, precision, size in cases:
        machine.attempt({"kind": "product kernel", **labels}, kernel_rows(machine, precision, size))
    return machine.finish()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
