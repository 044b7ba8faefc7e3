"""FP32 products with few columns, as a power iteration makes them, against torch.mm: M Q and Mᵀ P of d×d matrices.

    python benchmarks/narrow_products.py [--rounds 5] [--threads 1]

For each d and r one JSON line: `MQ` and `MtP` are the times over those of torch.mm in the same rounds, of a list of
matrices that fills the cache no longer than a step's batch does.
"""

import argparse
from functools import partial
from typing import Any

import torch
from measure import emit, interleaved, table
from torch import Tensor

import torchdion  # noqa: F401  registers torch.ops.torchdion

SIZES = (128, 256, 1024)
COLUMNS = (4, 8, 12, 16, 32)
ENTRIES = 2**21  # of all matrices of a list


def ours(C: list[Tensor], A: list[Tensor], B: list[Tensor]) -> None:
    torch.ops.torchdion.gemm_(C, A, B, 1.0, 0.0)


def torchs(C: list[Tensor], A: list[Tensor], B: list[Tensor]) -> None:
    for c, a, b in zip(C, A, B, strict=True):
        torch.mm(a, b, out=c)


def ratios(d: int, r: int, rounds: int) -> dict[str, Any]:
    count = max(2, ENTRIES // d**2)
    M = [torch.randn(d, d) for _ in range(count)]
    factors = [torch.randn(d, r) for _ in range(count)]
    products = [torch.empty(d, r) for _ in range(count)]
    transposed = [matrix.T for matrix in M]
    median, _ = interleaved(
        {
            f"{name} {whose.__name__}": partial(whose, products, left, factors)
            for name, left in (("MQ", M), ("MtP", transposed))
            for whose in (ours, torchs)
        },
        rounds,
        lambda _: None,
    )
    return {name: median[f"{name} ours"] / median[f"{name} torchs"] for name in ("MQ", "MtP")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    rows = [
        emit({"d": d, "r": r, **ratios(d, r, arguments.rounds), "threads": arguments.threads})
        for d in SIZES
        for r in COLUMNS
    ]
    print(table(rows, ("d", "r", "MQ", "MtP")))


if __name__ == "__main__":
    main()
