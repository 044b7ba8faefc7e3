"""How orthogonal P is on a GPU, and how far steps end from the FP64 oracle of the tests, at each precision.

    python benchmarks/gpu/gpu_accuracy.py [--list 120m 1.3b] [--seconds 50]

JSON lines. Of `kind` "orthogonality", for P of the lists' sizes at r = d/4 and condition numbers up to 1e8: `error`,
the largest singular value of PᵀP − I over the columns that are not zero, in FP64, and how many are zero, because what
they add to those before them is below the rounding of the operands. Of `kind` "distance": where twenty steps end,
‖X − X'‖ / ‖X' − X₀‖ with the X' of the oracle, and the largest κ(BQ) on the way: any two programs part ways where it is
large, and with rounded operands sooner.
"""

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from gpu_lists import CONDITIONS, LISTS, METHODS, RANKS, STATES, factors_of
from machine import Machine, machine_row, open_machine, parser_of
from measure import emit
from orthonormalize import conditioned
from torch.nn import Parameter

import torchdion
from torchdion.options import Precision

sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "tests" / "python" / "support"))
from oracle import DionState, dion
from runs import error, follow, normals, start

PRECISIONS: tuple[Precision, ...] = ("highest", "high", "medium")
DISTANCES: tuple[tuple[str, Precision], ...] = (
    ("FP32", "highest"),
    ("FP32", "high"),
    ("FP32", "medium"),
    ("BF16", "high"),
)
STEPS = 20
LARGEST = 768  # side of the matrices that the oracle, on the CPU, follows


def orthogonality_rows(machine: Machine, m: int, r: int, condition: float) -> Iterator[dict[str, Any]]:
    with machine.device:
        P = conditioned(m, r, condition, torch.float32)
    for method in METHODS:
        for precision in PRECISIONS:
            found = torch.ops.torchdion.orthonormalize(P, method, precision=precision).double()
            live = found[:, found.any(dim=0)]
            row = {"method": method, "precision": precision}
            yield {**row, "error": defect(live), "zero_columns": r - live.shape[1]}


def defect(P: torch.Tensor) -> float:
    """‖PᵀP − I‖₂ in FP64, a symmetric matrix's largest singular value; infinite without columns or finite entries."""
    gram = (P.mT @ P).cpu()
    if P.shape[1] == 0 or not gram.isfinite().all():
        return math.inf
    return float(torch.linalg.eigvalsh(gram - torch.eye(P.shape[1], dtype=torch.float64)).abs().max())


def distance_rows(
    machine: Machine, m: int, n: int, rank: str, state: str, precision: Precision
) -> Iterator[dict[str, Any]]:
    [first], *gradients = normals(STEPS + 1, (m, n), dtype=torch.float32)
    first = first / n**0.5
    param = Parameter(first.to(machine.device, copy=True))
    config = torchdion.DionMixedPrecisionConfig(momentum_dtype=STATES[state], Q_dtype=STATES[state])
    optimizer = torchdion.Dion([param], rank_fraction=RANKS[rank], precision=precision, mixed_precision_config=config)
    start(optimizer)
    expected = DionState(first, torch.zeros(m, n), optimizer.state[param]["Q"].clone().cpu())
    condition = 1.0
    for [gradient] in gradients:
        follow(optimizer, [param], [[gradient.to(machine.device)]])
        expected = dion(expected, gradient, 0.01, 0.95, 0.01, "right")
        condition = max(condition, expected.condition)
    yield {"condition": condition, "error": error(param.detach().cpu(), expected.X, first)}


def main(arguments: list[str]) -> int:
    given = parser_of(__doc__, ["120m", "1.3b"], 50.0).parse_args(arguments)
    machine = open_machine(given, "gpu_accuracy.py")
    emit(machine_row(machine, machine.rates(), program="accuracy"))
    for name in given.list:
        for m, r in sorted({(rows, r) for _, rows, r in factors_of(LISTS[name](), RANKS["d/4"])}):
            for condition in CONDITIONS:
                labels = {"kind": "orthogonality", "list": name, "rows": m, "r": r, "condition": condition}
                machine.attempt(labels, orthogonality_rows(machine, m, r, condition))
    side = min(LARGEST, max(max(shape) for name in given.list for shape in LISTS[name]()))
    for m, n in ((side, side // 4), (side // 4, side)):
        for rank in ("d", "d/4"):
            for state, precision in DISTANCES:
                labels = {"kind": "distance", "m": m, "n": n, "rank": rank, "state": state, "precision": precision}
                machine.attempt(labels, distance_rows(machine, m, n, rank, state, precision))
    return machine.finish()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
