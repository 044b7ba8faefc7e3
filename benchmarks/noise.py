"""How much of B Q is rounding, and whether Dion's threshold lies above it.

    python benchmarks/noise.py

B has exact rank k and Q is random, so that columns k + 1 and on of B Q depend on those before them but for rounding.
For each shape one JSON line: how many of them are taken for signal when the noise is said to be a fraction of
linalg::rounding_noise, ε (8 + sqrt(inner) / 4). At 1, which Dion uses, there must be none.
"""

import torch
from measure import emit, table

import torchdion

SHAPES = ((768, 768, 192, 8), (3072, 768, 192, 8), (768, 3072, 192, 32), (3072, 768, 768, 64), (256, 256, 64, 5))
FRACTIONS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
SEEDS = 3


def mistaken(m: int, n: int, r: int, k: int, fraction: float) -> int:
    """Columns of rounding that come out as signal, over all seeds."""
    noise = fraction * 2.0**-24 * (8 + n**0.5 / 4)
    found = 0
    for seed in range(SEEDS):
        generator = torch.Generator().manual_seed(seed)
        left = torch.randn(m, k, generator=generator, dtype=torch.float64)
        B = torch.mm(left, torch.randn(k, n, generator=generator, dtype=torch.float64)).float()
        P = torch.ops.torchdion.orthonormalize(B @ torch.randn(n, r, generator=generator), "auto", noise=noise)
        found += r - k - int((P == 0).all(dim=0).sum())
    return found


if __name__ == "__main__":
    assert torchdion.__version__
    rows = [
        emit({"m": m, "n": n, "r": r, "rank": k, **{f"{f:.3g}": mistaken(m, n, r, k, f) for f in FRACTIONS}})
        for m, n, r, k in SHAPES
    ]
    print(table(rows, list(rows[0])))
