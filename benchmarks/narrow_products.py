"""FP32 products of a low rank, as steps of Dion are made of them, against torch's: M Q, Mᵀ P and 0.999 X − 0.01 P Qᵀ.

    python benchmarks/narrow_products.py [--rounds 5] [--threads 1]

For each d and r one JSON line: `MQ`, `MtP` and `update` are the times over those of torch.addmm in the same rounds, of
a list of d×d matrices with as many entries as a step's batch.
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


def ours(C: list[Tensor], A: list[Tensor], B: list[Tensor], alpha: float, beta: float) -> None:
    torch.ops.torchdion.gemm_(C, A, B, alpha, beta)


def torchs(C: list[Tensor], A: list[Tensor], B: list[Tensor], alpha: float, beta: float) -> None:
    for c, a, b in zip(C, A, B, strict=True):
        torch.addmm(c, a, b, alpha=alpha, beta=beta, out=c)


def ratios(d: int, r: int, rounds: int) -> dict[str, Any]:
    count = max(2, ENTRIES // d**2)
    M, X = ([torch.randn(d, d) for _ in range(count)] for _ in range(2))
    P, Q, products = ([torch.randn(d, r) for _ in range(count)] for _ in range(3))
    cases = {
        "MQ": (products, M, Q, 1.0, 0.0),
        "MtP": (products, [matrix.T for matrix in M], P, 1.0, 0.0),
        "update": (X, P, [factor.T for factor in Q], -0.01, 0.999),
    }
    median, _ = interleaved(
        {f"{name} {whose.__name__}": partial(whose, *case) for name, case in cases.items() for whose in (ours, torchs)},
        rounds,
        lambda _: None,
    )
    return {name: median[f"{name} ours"] / median[f"{name} torchs"] for name in cases}


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
    print(table(rows, ("d", "r", "MQ", "MtP", "update")))


if __name__ == "__main__":
    main()
