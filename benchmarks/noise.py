"""How much of B Q is rounding, and how far Dion's threshold lies above it.

    python benchmarks/noise.py [--steps 200]

Two parts, JSON lines each. First one product: B has exact rank k and Q is random, so that columns k + 1 and on of B Q
depend on those before them but for rounding; a line says how many of them are taken for signal when the noise is said
to be a fraction of linalg::rounding_noise, ε (8 + sqrt(inner) / 4). At 1 there must be none.

Then the momentum of a run: gradients of exact rank k with fixed column and row spaces, of a size that stays or falls by
2% a step. What B Q has outside of the column space is noise, of the product and of the momentum, which every step
rounds; a line gives the median and the largest of all columns, in units of the noise of a product, and the noise of the
momentum in units of ε ‖M‖. linalg::noise_of_step says that it grows with the root of the steps.
"""

import argparse

import torch
from measure import emit, table

import torchdion

SHAPES = ((768, 768, 192, 8), (3072, 768, 192, 8), (768, 3072, 192, 32), (3072, 768, 768, 64), (256, 256, 64, 5))
FRACTIONS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
SEEDS = 3
RUNS = [  # m, n, r, k
    (m, n, r, k) for m, n in ((96, 96), (256, 192)) for r in (n, n // 4) for k in (1, 8, n // 2) if k <= r
]
SHOWN = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
EPSILON = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}


def unit(dtype: torch.dtype, inner: int) -> float:
    """linalg::rounding_noise."""
    return float(EPSILON[dtype] * (8 + inner**0.5 / 4))


def mistaken(m: int, n: int, r: int, k: int, fraction: float) -> int:
    """Columns of rounding that come out as signal, over all seeds."""
    found = 0
    for seed in range(SEEDS):
        generator = torch.Generator().manual_seed(seed)
        left = torch.randn(m, k, generator=generator, dtype=torch.float64)
        B = torch.mm(left, torch.randn(k, n, generator=generator, dtype=torch.float64)).float()
        noise = fraction * unit(torch.float32, n)
        P = torch.ops.torchdion.orthonormalize(B @ torch.randn(n, r, generator=generator), "auto", noise=noise)
        found += r - k - int((P == 0).all(dim=0).sum())
    return found


def noise_of_a_run(
    m: int, n: int, r: int, k: int, dtype: torch.dtype, falls: float, steps: int
) -> list[dict[str, object]]:
    generator = torch.Generator().manual_seed(0)

    def normal(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, generator=generator, dtype=torch.float64)

    U, V = torch.linalg.qr(normal(m, k))[0], torch.linalg.qr(normal(n, k))[0]

    def outside(matrix: torch.Tensor) -> torch.Tensor:
        return matrix - torch.mm(U, torch.mm(U.T, matrix))

    X = torch.nn.Parameter(torch.zeros(m, n, dtype=dtype))
    optimizer = torchdion.Dion([X], lr=1e-3, weight_decay=0.0, rank_fraction=r / min(m, n), orientation="left")
    rows = []
    for step in range(1, steps + 1):
        X.grad = (U @ normal(k, k) @ V.T * falls**step).to(dtype)
        if step in SHOWN and step > 1:
            M, Q = optimizer.state[X]["momentum"], optimizer.state[X]["Q"]
            P = ((M + X.grad) @ Q).double()
            lengths = P.norm(dim=0)
            of_product = unit(dtype, n) * torch.maximum(lengths, lengths.square().mean().sqrt())
            ratio = outside(P).norm(dim=0) / of_product
            of_momentum = outside(M.double()).norm() / M.double().norm() / EPSILON[dtype]
            row = {"m": m, "n": n, "r": r, "rank": k, "dtype": str(dtype).removeprefix("torch."), "falls": falls}
            row |= {"step": step, "median": ratio.median().item(), "largest": ratio.max().item()}
            rows.append(emit(row | {"momentum": of_momentum.item()}))
        optimizer.step()
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200, help="of each run")
    steps = parser.parse_args().steps
    products = [
        emit({"m": m, "n": n, "r": r, "rank": k, **{f"{f:.3g}": mistaken(m, n, r, k, f) for f in FRACTIONS}})
        for m, n, r, k in SHAPES
    ]
    last = [noise_of_a_run(*run, dtype, falls, steps)[-1] for dtype in EPSILON for falls in (1.0, 0.98) for run in RUNS]
    print(table(products, list(products[0])), table(last, list(last[0])), sep="\n\n")
