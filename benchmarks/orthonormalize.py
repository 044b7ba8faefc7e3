"""The ways to orthonormalize P against each other: time, orthogonality and what each makes of hard input.

    python benchmarks/orthonormalize.py [--rounds 5]

For each shape one JSON line per method: its time over that of a plain product of the same sizes (2mr² operations at
the machine's rate), and over that of "auto"; then for each condition number the largest entry of PᵀP − I over the
columns that are not zero, and how many are.
"""

import argparse
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from measure import emit, interleaved, table
from torch import Tensor

import torchdion  # registers torch.ops.torchdion

METHODS = ("auto", "cholesky_qr", "rcqr", "qr")
SHAPES = ((768, 768), (3072, 768), (3072, 192), (3072, 48), (256, 64))
CONDITIONS = (1e0, 1e3, 1e6, 1e9)


def conditioned(m: int, r: int, condition: float, dtype: torch.dtype) -> Tensor:
    """A matrix with singular values spread evenly over the decades from 1 to 1 / condition."""
    left = torch.linalg.qr(torch.randn(m, r, dtype=torch.float64)).Q
    right = torch.linalg.qr(torch.randn(r, r, dtype=torch.float64)).Q
    values = torch.logspace(0, -math.log10(condition), r, dtype=torch.float64)
    return torch.mm(left * values, right).to(dtype)


def speed(rounds: int) -> list[dict[str, Any]]:
    rows = []
    for m, r in SHAPES:
        batch = torch.stack([conditioned(m, r, 10.0, torch.float32) for _ in range(4)])
        runs: dict[str, Callable[[], object]] = {
            method: partial(torch.ops.torchdion.orthonormalize, batch, method) for method in METHODS
        }
        for run in runs.values():
            run()
        median, rate = interleaved(runs, rounds, lambda _: None)
        product = len(batch) * 2 * m * r**2 / rate
        for method in METHODS:
            row = {"m": m, "r": r, "method": method, "over a product": median[method] / product}
            rows.append(emit({**row, "over auto": median[method] / median["auto"]}))
    return rows


def robustness() -> list[dict[str, Any]]:
    rows = []
    for dtype in (torch.float32, torch.float64):
        for condition in CONDITIONS:
            P = conditioned(1024, 128, condition, dtype)
            for method in METHODS:
                result = torch.ops.torchdion.orthonormalize(P, method).double()
                alive = result.square().sum(0) > 0
                error = (result[:, alive].T @ result[:, alive] - torch.eye(int(alive.sum()))).abs().max().item()
                row = {"dtype": str(dtype).removeprefix("torch."), "condition": condition, "method": method}
                rows.append(emit({**row, "error": error, "zero columns": int((~alive).sum())}))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    assert torchdion.__version__
    timed, checked = speed(arguments.rounds), robustness()
    print(table(timed, list(timed[0])), table(checked, list(checked[0])), sep="\n\n")


if __name__ == "__main__":
    main()
