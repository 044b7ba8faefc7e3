"""Matrices that are hard to orthonormalize, and what must hold of the factor of each."""

import torch
from torch import Tensor

METHODS = ["auto", "rcqr", "cholesky_qr", "qr"]
DTYPES = [torch.float32, torch.float64]

# In units of ε: |‖p_j‖² − 1|, |p_i·p_j| and ‖a_j − P Pᵀ a_j‖ / ‖a_j‖. FP32 factors come from FP64 Grams.
DIAGONAL = {torch.float32: 10, torch.float64: 100}
OFF_DIAGONAL = {torch.float32: 5, torch.float64: 50}
REPRODUCTION = 200
# A column that stands out of the rounding of its combination with those before it by less may count as rounding.
SIGNAL = 50


def conditioned(m: int, r: int, kappa: float, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """m×r with singular values from 1 down to 1/κ, in random directions."""
    generator = torch.Generator().manual_seed(seed)
    U, _ = torch.linalg.qr(torch.randn(m, r, generator=generator, dtype=torch.float64))
    V, _ = torch.linalg.qr(torch.randn(r, r, generator=generator, dtype=torch.float64))
    singular = torch.tensor(kappa, dtype=torch.float64) ** -torch.linspace(0, 1, r, dtype=torch.float64)
    return torch.mm(U * singular, V.mT).to(dtype)


def dependent(dtype: torch.dtype) -> tuple[Tensor, list[int]]:
    """A 40×12 matrix of small integers, and the columns that depend on those before them."""
    generator = torch.Generator().manual_seed(3)
    A = torch.randint(-3, 4, (40, 12), generator=generator).double()
    A[:, 4] = A[:, 0] + A[:, 2]
    A[:, 5] = 0
    A[:, 8] = A[:, 1] - 2 * A[:, 7] + A[:, 4]
    A[:, 11] = A[:, 8]
    return A.to(dtype), [4, 5, 8, 11]


def zero_columns(P: Tensor) -> list[int]:
    return torch.nonzero((P == 0).all(dim=0)).flatten().tolist()


def assert_orthonormal(P: Tensor) -> None:
    """The columns that are not exactly zero are orthonormal near rounding."""
    eps = torch.finfo(P.dtype).eps
    live = P.double()[:, (P != 0).any(dim=0)]
    gram = live.mT @ live
    diagonal = gram.diagonal()
    off_diagonal = gram - diagonal.diag()
    assert (diagonal - 1).abs().max() <= DIAGONAL[P.dtype] * eps
    assert off_diagonal.abs().max() <= OFF_DIAGONAL[P.dtype] * eps


def assert_reproduces(P: Tensor, A: Tensor, noise: float = 0.0) -> None:
    """Nothing of A is lost: P Pᵀ A = A, column by column, to rounding and `noise` times the column."""
    scale = torch.linalg.vector_norm(A.double(), dim=0)
    unit = (A.double() / scale)[:, scale > 0]
    lost = torch.linalg.vector_norm(unit - P.double() @ (P.double().mT @ unit), dim=0)
    assert lost.max() <= REPRODUCTION * torch.finfo(A.dtype).eps + noise


def kahan(r: int, c: float, dtype: torch.dtype) -> Tensor:
    """Kahan's matrix on 20 rows of zeros: every column has a part of its own, yet κ grows like (1 + c)^r."""
    sine = (1 - c * c) ** 0.5
    upper = torch.triu(torch.full((r, r), -c, dtype=torch.float64), 1) + torch.eye(r, dtype=torch.float64)
    rows = sine ** torch.arange(r, dtype=torch.float64)
    return torch.cat([upper * rows[:, None], torch.zeros(20, r, dtype=torch.float64)]).to(dtype)


def low_rank_and_noise(noise: float, dtype: torch.dtype) -> Tensor:
    """120×60: rank 7, as a gradient of few tokens has, and everything else `noise` times smaller."""
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return (normal(120, 7) @ normal(7, 60) + noise * normal(120, 60)).to(dtype)


def signal(A: Tensor) -> Tensor:
    """Which columns certainly carry signal.

    With unit columns and c the best combination of those before it, what is left of a column, ‖a − A c‖, is computed
    with an error of ε (1 + ‖c‖).
    """
    unit = A.double() / torch.linalg.vector_norm(A.double(), dim=0)
    upper = torch.linalg.qr(unit).R
    outside = upper.diagonal().abs()
    inverse = torch.linalg.inv(upper)
    combination = torch.linalg.vector_norm(inverse, dim=0) * outside  # sqrt(1 + ‖c‖²)
    return torch.gt(outside, SIGNAL * torch.finfo(A.dtype).eps * (1 + combination))


def rank_eight(columns: int, seed: int, dtype: torch.dtype) -> Tensor:
    """60×columns of exact rank 8, by small integers: columns 8 and on depend on the first eight."""
    generator = torch.Generator().manual_seed(seed)
    left = torch.randint(-3, 4, (60, 8), generator=generator).double()
    right = torch.randint(-3, 4, (8, columns), generator=generator).double()
    singular = torch.linalg.svdvals(left @ right)
    assert singular[7] >= 1e6 * singular[8]
    assert torch.linalg.matrix_rank(right[:, :8]) == 8
    return (left @ right).to(dtype)
