"""How far twenty steps end from the FP64 oracle of the tests, relative to the distance travelled.

    python benchmarks/accuracy.py

One JSON line per shape, rank, orientation, dtype and precision: ‖X − X'‖ / ‖X' − X₀‖ and the largest κ(BQ) on the
way. Any two correct programs part ways when κ(BQ) is large; the claims, 1e-12 in FP64 and 1e-4 in FP32, are for
κ(BQ) ≤ 1e4. The weights start with the usual deviation 1 / sqrt(n): the error in FP32 is mostly their own rounding,
twenty times over. At precision="medium" it is that of operands rounded to BF16, and of columns of P that this leaves
no signal in.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from measure import emit, table
from torch.nn import Parameter

import torchdion
from torchdion.options import Orientation, Precision

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "python" / "support"))
from oracle import DionState, dion
from runs import error, follow, normals, start

STEPS = 20
PRECISIONS: list[tuple[torch.dtype, Precision]] = [
    (torch.float64, "highest"),
    (torch.float32, "highest"),
    (torch.float32, "medium"),
]


def benchmark(
    m: int, n: int, fraction: float, orientation: Orientation, dtype: torch.dtype, precision: Precision
) -> dict[str, Any]:
    [first], *gradients = normals(STEPS + 1, (m, n), dtype=dtype)
    first = first / n**0.5
    param = Parameter(first.clone())
    optimizer = torchdion.Dion([param], rank_fraction=fraction, orientation=orientation, precision=precision)
    start(optimizer)
    expected = DionState(first, torch.zeros(m, n), optimizer.state[param]["Q"].clone())
    condition = 1.0
    for [gradient] in gradients:
        follow(optimizer, [param], [[gradient]])
        expected = dion(expected, gradient, 0.01, 0.95, 0.01, orientation)
        condition = max(condition, expected.condition)
    return emit(
        {
            "shape": f"{m}×{n}",
            "r / d": fraction,
            "orientation": orientation,
            "dtype": str(dtype).removeprefix("torch."),
            "precision": precision,
            "κ(BQ)": condition,
            "error": f"{error(param.detach(), expected.X, first):.1e}",
        }
    )


if __name__ == "__main__":
    rows = [
        benchmark(m, n, fraction, orientation, dtype, precision)
        for m, n in ((256, 96), (96, 256), (768, 192))
        for fraction in (1.0, 0.25)
        for orientation in ("right", "left")
        for dtype, precision in PRECISIONS
    ]
    print(table(rows, list(rows[0])))
