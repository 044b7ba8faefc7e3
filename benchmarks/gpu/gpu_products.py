"""The four products of a step by themselves, by each way that cuBLAS has and as torchdion computes them.

    python benchmarks/gpu/gpu_products.py [--list 120m 1.3b] [--rounds 10] [--seconds 110]

JSON lines of `kind` "product", of `count` matrices of m×n at once, as a step with these lists and FP32 states has them,
in TF32 (the default precision, "high"):

    product      as the paper writes it; the default orientation runs on transposed matrices, so M is n×m here
    method       "strided": one call for matrices at equal distances; "pointers": one call for a list of addresses;
                 "each": one call a matrix; "torchdion": torch.ops.torchdion.gemm_, with what it does beside the product
    ms           of one among many that follow each other without a wait
    over_limit   that over the longer of arithmetic and traffic, at the rates measured in the same run

Then, after everything was timed, the same products under torch's profiler: rows of `kind` "product kernel" with the
names of what ran, and `device_ms`, the time of all that ran without what lies between: where matrices are small, "each"
waits for the host.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from cublas import WAYS
from gpu_lists import LISTS, RANKS, batches_of
from machine import Machine, Rates, machine_row, open_machine, parser_of
from measure import emit
from torch import Tensor

import torchdion  # registers torch.ops.torchdion

SHOWN_RANKS = ("d/4", "d/16")
METHODS = (*WAYS, "torchdion")
MU, LR, KEEP = 0.95, 1e-3, 1 - 1e-5
Terms = tuple[Tensor, Tensor, Tensor, float, float]  # C ← α A B + β C


def products_of(machine: Machine, count: int, m: int, n: int, r: int) -> dict[str, Terms]:
    """The products of a step on m×n matrices in the default orientation, each a stack."""
    X, M = (torch.randn(count, m, n, device=machine.device).mT for _ in range(2))
    Q, R = (torch.randn(count, m, r, device=machine.device) for _ in range(2))
    P = torch.randn(count, n, r, device=machine.device)
    P *= (n * r) ** -0.5  # M, updated again and again, stays finite
    return {
        "P = M Q": (torch.empty_like(P), M, Q, 1.0, 0.0),
        "R = Mᵀ P": (torch.empty_like(R), M.mT, P, 1.0, 0.0),
        "M ← M − (1−μ) P Rᵀ": (M, P, R.mT, MU - 1, 1.0),
        "X ← keep X − lr P Qᵀ": (X, P, Q.mT, -LR, KEEP),
    }


def least_ms(terms: Terms, rates: Rates) -> float:
    C, A, B, _, beta = terms
    operations = 2 * C.numel() * A.shape[-1]
    moved = A.nbytes + B.nbytes + C.nbytes * (2 if beta else 1)
    return 1e3 * max(operations / rates.tf32, moved / rates.copy)


def runner(machine: Machine, method: str, terms: Terms) -> Callable[[], object]:
    C, A, B, alpha, beta = terms
    if method != "torchdion":
        return machine.cublas().multiply(method, C, A, B, alpha, beta, "TF32")
    lists = [list(stack) for stack in (C, A, B)]
    return partial(torch.ops.torchdion.gemm_, *lists, alpha, beta, precision="high")


def timed_rows(
    machine: Machine, size: tuple[int, int, int, int], rates: Rates, rounds: int
) -> Iterator[dict[str, Any]]:
    for product, terms in products_of(machine, *size).items():
        least = least_ms(terms, rates)
        for method in METHODS:
            run = runner(machine, method, terms)
            run()
            ms, times = machine.back_to_back_ms(run, rounds, budget_ms=100)
            yield {"product": product, "method": method, "ms": ms, "rounds": times, "over_limit": ms / least}


def kernel_rows(machine: Machine, size: tuple[int, int, int, int]) -> Iterator[dict[str, Any]]:
    for product, terms in products_of(machine, *size).items():
        for method in METHODS:
            kernels = machine.kernels(runner(machine, method, terms))
            names = [f"{kernel.launches}× {kernel.name}" for kernel in sorted(kernels, key=lambda kernel: -kernel.ms)]
            device_ms = sum(kernel.ms for kernel in kernels)
            yield {"product": product, "method": method, "kernels": names, "device_ms": device_ms}


def main(arguments: list[str]) -> int:
    assert torchdion.__version__
    given = parser_of(__doc__, ["1.3b", "120m"], 110.0).parse_args(arguments)
    machine = open_machine(given, "gpu_products.py")
    rates = machine.rates()
    emit(machine_row(machine, rates, program="products"))
    sizes = [
        ({"list": name, "rank": rank, "count": count, "m": m, "n": n, "r": r}, (count, m, n, r))
        for name in given.list
        for rank in SHOWN_RANKS
        for count, m, n, r in batches_of(LISTS[name](), RANKS[rank])
    ]
    for labels, size in sizes:
        machine.attempt({"kind": "product", **labels}, timed_rows(machine, size, rates, given.rounds))
    for labels, size in sizes:
        machine.attempt({"kind": "product kernel", **labels}, kernel_rows(machine, size))
    return machine.finish()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
