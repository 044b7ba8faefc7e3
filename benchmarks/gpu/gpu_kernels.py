"""The factorization and what else a step does beside its products, by themselves, on batches as large as a step's.

    python benchmarks/gpu/gpu_kernels.py [--list 120m 1.3b] [--rounds 10] [--seconds 45]

JSON lines of `kind` "operation", with `count` matrices of `rows`×`r`:

    gram              PᵀP in FP64 by each of cuBLAS's ways, one among many that follow each other; `over_product`: over
                      the same at the machine's rate for FP64
    linalg.cholesky   torch's, of those Gram matrices
    orthonormalize    one row per method and precision; `over_product`: its time over that of a plain product of the
                      same sizes, 2 rows r² operations at the rate of TF32; `qr`: the time of torch.linalg.qr over this
                      one (`qr_of` matrices were timed, and the time multiplied)
    column_normalize  `over_copy`: its time over that of a copy of R; the operation also copies Q and keeps the sums of
                      squares, which the step does not
    sketch_           one r×rows block of the sketch; `over_copy`: over the time in which its bytes are written

What a step's other kernels take is in the rows of gpu_profile.py: accumulating the gradient is no operation of
torch.ops. The products are those of gpu_products.py.
"""

import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from cublas import WAYS as WAYS_OF_CUBLAS
from gpu_lists import LISTS, RANKS, factors_of
from machine import Machine, Rates, machine_row, open_machine, parser_of
from measure import emit

import torchdion  # registers torch.ops.torchdion

QR_BUDGET_MS = 300.0
SHOWN_RANKS = ("d/4", "d/16")
WAYS = (("auto", "high"), ("auto", "highest"), ("rcqr", "high"))


def orthonormalize_rows(machine: Machine, rates: Rates, rounds: int, P: torch.Tensor) -> Iterator[dict[str, Any]]:
    count, m, r = P.shape
    torch.linalg.qr(P[:1])
    one = machine.ms(partial(torch.linalg.qr, P[:1]))
    timed = count if one * count <= QR_BUDGET_MS else 1
    qr = machine.median_ms(partial(torch.linalg.qr, P[:timed]), rounds, QR_BUDGET_MS)[0] * count / timed
    product = 1e3 * count * 2 * m * r**2 / rates.tf32
    for method, precision in WAYS:
        run = partial(torch.ops.torchdion.orthonormalize, P, method, precision=precision)
        run()
        ms, _ = machine.median_ms(run, rounds, budget_ms=200)
        row = {"operation": "orthonormalize", "method": method, "precision": precision, "ms": ms}
        yield {**row, "over_product": ms / product, "qr": qr / ms, "qr_of": timed}


def moving_rows(machine: Machine, rates: Rates, rounds: int, R: torch.Tensor) -> Iterator[dict[str, Any]]:
    """The operations that only move memory."""
    Q = torch.randn_like(R)
    runs = {
        "column_normalize": (partial(torch.ops.torchdion.column_normalize, R, Q), 2 * R.nbytes),
        "sketch_": (partial(torch.ops.torchdion.sketch_, R[0].mT.contiguous(), 0, 1), R[0].nbytes),
    }
    for operation, (run, moved) in runs.items():
        run()
        ms, _ = machine.median_ms(run, rounds, budget_ms=100)
        yield {"operation": operation, "ms": ms, "over_copy": ms / (1e3 * moved / rates.copy)}


def gram_rows(machine: Machine, rates: Rates, rounds: int, P: torch.Tensor) -> Iterator[dict[str, Any]]:
    """The Gram matrices in FP64, and their Cholesky factors by torch."""
    count, m, r = P.shape
    wide = P.double()
    gram = torch.empty(count, r, r, dtype=torch.float64, device=machine.device)
    product = 1e3 * count * 2 * m * r**2 / rates.fp64
    for way in WAYS_OF_CUBLAS:
        run = machine.cublas().multiply(way, gram, wide.mT, wide, 1.0, 0.0, "FP64")
        run()
        ms, _ = machine.back_to_back_ms(run, rounds, budget_ms=200)
        yield {"operation": "gram", "method": way, "ms": ms, "over_product": ms / product}
    factor = partial(torch.linalg.cholesky_ex, gram)
    factor()
    yield {"operation": "linalg.cholesky", "ms": machine.median_ms(factor, rounds, budget_ms=200)[0]}


def measure_list(machine: Machine, name: str, rank: str, rates: Rates, rounds: int) -> None:
    for count, rows, r in factors_of(LISTS[name](), RANKS[rank]):
        labels = {"kind": "operation", "list": name, "rank": rank, "count": count, "rows": rows, "r": r}

        def measured(size: tuple[int, int, int] = (count, rows, r)) -> Iterator[dict[str, Any]]:
            factors = torch.randn(size, device=machine.device)
            yield from orthonormalize_rows(machine, rates, rounds, factors)
            yield from gram_rows(machine, rates, rounds, factors)
            yield from moving_rows(machine, rates, rounds, factors)

        machine.attempt(labels, measured())


def main(arguments: list[str]) -> int:
    assert torchdion.__version__
    given = parser_of(__doc__, ["1.3b", "120m"], 45.0).parse_args(arguments)
    machine = open_machine(given, "gpu_kernels.py")
    rates = machine.rates()
    emit(machine_row(machine, rates, program="factors"))
    for name in given.list:
        for rank in SHOWN_RANKS:
            measure_list(machine, name, rank, rates, given.rounds)
    return machine.finish()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
