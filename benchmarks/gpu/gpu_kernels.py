"""The operations of a step by themselves, on batches as large as those of the steps on these lists.

    python benchmarks/gpu/gpu_kernels.py [--list 120m 1.3b 3b] [--rounds 10] [--seconds 50]

JSON lines of `kind` "operation", with `count` matrices of `rows`×`r`:

    orthonormalize    one row per method and precision; `over_product`: its time over that of a plain product of the
                      same sizes, 2 rows r² operations at the rate of TF32; `qr`: the time of torch.linalg.qr over this
                      one (`qr_of` matrices were timed, and the time multiplied)
    column_normalize  `over_copy`: its time over that of a copy of R; the operation also copies Q and keeps the sums of
                      squares, which the step does not
    sketch_           one r×rows block of the sketch; `over_copy`: over the time in which its bytes are written
    gemm_             P = MᵀQ for m×n momenta at precision "high": `method` "strided", of momenta in one stack, and
                      "pointers", of the same ones as lists, which is how a step reads them; `over_product` as above

What a step's other kernels take is in the rows of gpu_step.py: accumulating the gradient is no operation of torch.ops.
"""

import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from gpu_lists import LISTS, RANKS, batches_of, factors_of
from machine import Machine, Rates, open_machine, parser_of
from measure import emit

import torchdion  # registers torch.ops.torchdion

QR_BUDGET_MS = 300.0
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


def product_rows(
    machine: Machine, rates: Rates, rounds: int, size: tuple[int, int, int, int]
) -> Iterator[dict[str, Any]]:
    count, m, n, r = size
    M, Q = torch.randn(count, m, n, device=machine.device), torch.randn(count, m, r, device=machine.device)
    P = torch.empty(count, n, r, device=machine.device)
    orders = {"strided": list(range(count))}
    if count > 1:
        orders["pointers"] = [*range(1, count), 0]  # at equal distances no more
    for method, order in orders.items():
        lists = [P[i] for i in order], [M[i].mT for i in order], [Q[i] for i in order]
        run = partial(torch.ops.torchdion.gemm_, *lists, 1.0, 0.0, precision="high")
        run()
        ms, _ = machine.median_ms(run, rounds, budget_ms=200)
        product = 1e3 * count * 2 * m * n * r / rates.tf32
        yield {"operation": "gemm_", "method": method, "ms": ms, "over_product": ms / product}


def measure_list(machine: Machine, name: str, rank: str, rates: Rates, rounds: int) -> None:
    for count, m, n, r in batches_of(LISTS[name](), RANKS[rank]):
        labels = {"kind": "operation", "list": name, "rank": rank, "count": count, "m": m, "rows": n, "r": r}
        machine.attempt(labels, product_rows(machine, rates, rounds, (count, m, n, r)))
    for count, rows, r in factors_of(LISTS[name](), RANKS[rank]):
        labels = {"kind": "operation", "list": name, "rank": rank, "count": count, "rows": rows, "r": r}

        def measured(size: tuple[int, int, int] = (count, rows, r)) -> Iterator[dict[str, Any]]:
            factors = torch.randn(size, device=machine.device)
            yield from orthonormalize_rows(machine, rates, rounds, factors)
            yield from moving_rows(machine, rates, rounds, factors)

        machine.attempt(labels, measured())


def main(arguments: list[str]) -> int:
    assert torchdion.__version__
    given = parser_of(__doc__, ["120m", "1.3b", "3b"], 50.0).parse_args(arguments)
    machine = open_machine(given, "gpu_kernels.py")
    rates = machine.rates()
    emit({"kind": "machine", "device": machine.name, "torch": torch.__version__, **rates._asdict()})
    for name in given.list:
        for rank in RANKS:
            measure_list(machine, name, rank, rates, given.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
