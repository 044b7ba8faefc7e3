"""A step keeps what its precision knows: columns of B Q that are longer than their rounding, whatever their direction.

The reference is a Householder QR in FP64, of what the products read. The same QR in FP32 says what FP32 can know.
"""

from typing import Any

import pytest
import torch
from orthonormality import METHODS, conditioned
from runs import start
from torch import Tensor
from torch.nn import Parameter

import torchdion

RANKS = [1.0, 0.5, 0.25, 0.05]
CONDITIONS = [1.0, 1e3, 1e5]


def stepped(M: Tensor, Q: Tensor, step: int = 1, **options: Any) -> tuple[Tensor, Tensor]:
    """P Qᵀ of a step from this momentum with a gradient of zero, and which columns were dropped."""
    X = Parameter(torch.zeros_like(M))
    optimizer = torchdion.Dion(
        [X], lr=1.0, weight_decay=0.0, orientation="left", rank_fraction=Q.shape[1] / min(M.shape), **options
    )
    start(optimizer)
    state = optimizer.state[X]
    state["momentum"].copy_(M)
    state["Q"].copy_(Q)
    state["step"].fill_(step - 1)
    with torch.no_grad():
        X.zero_()
    X.grad = torch.zeros_like(M)
    optimizer.step()
    m, n = M.shape
    kept = Q.clone()
    dropped = (state["Q"] == kept).all(dim=0)  # a column of zeros of R keeps its column of Q
    return -X.detach() / (m / n) ** 0.5, dropped


def householder(M: Tensor, Q: Tensor) -> Tensor:
    P, _ = torch.linalg.qr(M @ Q)
    R = M.mT @ P
    return P @ (R / torch.linalg.vector_norm(R, dim=0)).mT


def error(U: Tensor, exact: Tensor) -> float:
    return float(torch.linalg.vector_norm(U.double() - exact) / torch.linalg.vector_norm(exact))


def momentum(m: int, n: int, r: int, condition: float, seed: int) -> tuple[Tensor, Tensor]:
    """B and Q whose product has this condition number: Q has orthonormal columns that B's singular vectors span."""
    left, _ = torch.linalg.qr(torch.randn(m, r, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))
    middle = conditioned(r, r, condition, torch.float64, seed + 1)
    right, _ = torch.linalg.qr(
        torch.randn(n, r, generator=torch.Generator().manual_seed(seed + 2), dtype=torch.float64)
    )
    return (left @ middle @ right.mT).float(), right.float()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("fraction", RANKS)
@pytest.mark.parametrize("shape", [(96, 96), (160, 64), (64, 160)])
def test_a_step_in_fp32_is_as_good_as_a_householder_qr(
    shape: tuple[int, int], fraction: float, condition: float, method: str
) -> None:
    r = max(1, round(fraction * min(shape)))
    for seed in range(2):
        B, Q = momentum(*shape, r, condition, seed)
        update, dropped = stepped(B, Q, orthonormalize=method)
        exact = householder(B.double(), Q.double())
        assert not dropped.any()
        assert error(update, exact) <= 5 * error(householder(B, Q), exact)


@pytest.mark.parametrize("method", ["auto", "rcqr"])
@pytest.mark.parametrize("precision", ["highest", "medium"])
@pytest.mark.parametrize("rank", [1, 5, 24])
@pytest.mark.parametrize("shape", [(48, 48), (160, 32), (32, 160), (4, 4), (256, 128)])
def test_a_step_drops_what_rounding_alone_makes_of_a_momentum_of_low_rank(
    shape: tuple[int, int], rank: int, precision: Any, method: str
) -> None:
    m, n = shape
    rank = min(rank, min(m, n) - 1)
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)

        def normal(*sizes: int, generator: torch.Generator = generator) -> Tensor:
            return torch.randn(*sizes, generator=generator, dtype=torch.float64)

        # Small integers, which every precision reads as they are: B has this rank, and B Q is rounded.
        B = (normal(m, rank).round() @ normal(rank, n).round()).float()
        assert torch.equal(B, B.bfloat16().float())
        Q, _ = torch.linalg.qr(normal(n, min(m, n)))
        update, dropped = stepped(B, Q.float(), orthonormalize=method, precision=precision)
        known = int(torch.linalg.matrix_rank(B.double()))
        assert int(dropped.sum()) == min(m, n) - known
        assert torch.linalg.matrix_rank(update.double(), rtol=1e-3) == known


def of_two_lengths(m: int, n: int, length: float, seed: int) -> tuple[Tensor, Tensor]:
    """B of half its columns of length 1 and half of a shorter one, which B Q with this Q has as they are."""
    generator = torch.Generator().manual_seed(seed)
    U, _ = torch.linalg.qr(torch.randn(m, n, generator=generator, dtype=torch.float64))
    lengths = torch.where(torch.arange(n) < n // 2, 1.0, length)
    return (U * lengths).float(), torch.eye(n)


@pytest.mark.parametrize("shape", [(64, 64), (256, 32)])
def test_at_medium_columns_are_kept_that_are_longer_than_the_rounding_of_operands(shape: tuple[int, int]) -> None:
    """Roundings to eight bits have a root mean square of 2⁻⁷ · 0.21, and so has what they leave in a column."""
    rounding = 2.0**-7 * 0.21
    for seed in range(4):
        update, dropped = stepped(*of_two_lengths(*shape, 4 * rounding, seed), precision="medium")
        assert not dropped.any()
        assert torch.linalg.matrix_rank(update.double(), rtol=0.1) == shape[1]
        _, dropped = stepped(*of_two_lengths(*shape, rounding / 8, seed), precision="medium")
        assert dropped[shape[1] // 2 :].sum() >= shape[1] // 4


@pytest.mark.parametrize("method", METHODS)
def test_a_step_in_fp64_keeps_late_in_a_training_what_fp32_could_not(method: str) -> None:
    """FP64 drops what is shorter than some 10⁻⁶, as layouts differ; a million roundings leave 10⁻¹³."""
    for length in (1e-5, 1e-4):
        B, Q = (matrix.double() for matrix in of_two_lengths(64, 64, length, 0))
        _, dropped = stepped(B, Q, step=1_000_000, orthonormalize=method)
        assert not dropped.any()


@pytest.mark.parametrize("method", METHODS)
def test_without_error_feedback_the_momentum_forgets_its_roundings(method: str) -> None:
    """M = μ M + G has those of 1 / (1 − μ²) steps, however many there were."""
    length = 40 * 2.0**-24
    B, Q = of_two_lengths(64, 64, length, 0)
    for feeds_back, steps, is_dropped in ((True, 1, False), (True, 100_000, True), (False, 100_000, False)):
        _, dropped = stepped(B, Q, step=steps, orthonormalize=method, mu=0.5, error_feedback=feeds_back)
        assert bool(dropped.any()) == is_dropped


@pytest.mark.parametrize("method", METHODS)
def test_what_a_hundred_thousand_steps_may_have_rounded_counts_as_noise(method: str) -> None:
    """Each step rounds the momentum, by some 0.6 ε of its length: √steps of it."""
    epsilon, steps = 2.0**-24, 100_000
    short = 0.6 * epsilon * steps**0.5
    B, Q = of_two_lengths(96, 96, short, 0)
    _, dropped = stepped(B, Q, step=1, orthonormalize=method)
    assert not dropped.any(), "one step has rounded so little that this is signal"
    _, dropped = stepped(B, Q, step=steps, orthonormalize=method)
    assert dropped[48:].all() and not dropped[:48].any()
    _, dropped = stepped(*of_two_lengths(96, 96, 40 * short, 0), step=steps, orthonormalize=method)
    assert not dropped.any()
