"""torch.ops.torchdion.orthonormalize: columns with signal come out orthonormal, the others exactly zero."""

from collections.abc import Callable

import pytest
import torch
from orthonormality import (
    DTYPES,
    METHODS,
    assert_orthonormal,
    assert_reproduces,
    conditioned,
    dependent,
    kahan,
    low_rank_and_noise,
    rank_eight,
    signal,
    zero_columns,
)
from torch import Tensor

Operation = Callable[[Tensor, str], Tensor]


@pytest.fixture
def orthonormalize(device: str) -> Operation:
    """The operation on a device, for matrices on the CPU."""
    return lambda P, method: torch.ops.torchdion.orthonormalize(P.to(device), method).cpu()


@pytest.mark.parametrize("kappa", [1e0, 1e3, 1e6, 1e7, 1e8, 1e9])
@pytest.mark.parametrize("shape", [(96, 32), (40, 40), (300, 100), (33, 7)])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_columns_with_signal_are_orthonormal_at_any_condition(dtype, method, shape, kappa, orthonormalize):
    A = conditioned(*shape, kappa, dtype)
    P = orthonormalize(A, method)
    assert_orthonormal(P)
    assert_reproduces(P, A)
    certain = signal(A)
    assert certain.all() or (dtype == torch.float32 and kappa >= 1e6)
    assert (P[:, certain] != 0).any(dim=0).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("dtype", "r", "c", "least"), [(torch.float32, 40, 0.2, 1e3), (torch.float64, 60, 0.3, 1e8)])
def test_a_matrix_that_hides_its_condition_loses_nothing(dtype, r, c, least, method, orthonormalize):
    A = kahan(r, c, dtype)
    assert least <= torch.linalg.cond(A.double()) <= 10 * least
    P = orthonormalize(A, method)
    assert zero_columns(P) == []
    assert_orthonormal(P)
    assert_reproduces(P, A)


@pytest.mark.parametrize("noise", [1e-4, 1e-6, 4e-8, 1e-9, 1e-12, 1e-14])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_low_rank_and_noise_are_orthonormalized_whatever_the_noise(dtype, method, noise, orthonormalize):
    A = low_rank_and_noise(noise, dtype)
    P = orthonormalize(A, method)
    assert P.isfinite().all()
    assert_orthonormal(P)
    within_the_claim = torch.linalg.cond(A.double()) <= 1e9
    assert_reproduces(P, A, 0.0 if within_the_claim else 10 * noise)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_span_is_that_of_householder_qr(dtype, method, orthonormalize):
    A = conditioned(90, 24, 100.0, dtype)
    P = orthonormalize(A, method).double()
    basis, _ = torch.linalg.qr(A.double())
    assert torch.linalg.matrix_norm(P @ P.mT - basis @ basis.mT, 2) <= 100 * 20 * torch.finfo(dtype).eps


@pytest.mark.parametrize("method", METHODS)
def test_columns_are_those_of_householder_qr_up_to_sign(method, orthonormalize):
    A = conditioned(60, 15, 10.0, torch.float64)
    cosines = (orthonormalize(A, method) * torch.linalg.qr(A).Q).sum(dim=0)
    assert (cosines.abs() - 1).abs().max() <= 1e-13


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_zero_columns_stay_exactly_zero(dtype, method, orthonormalize):
    A = conditioned(50, 10, 10.0, dtype)
    A[:, [0, 4, 9]] = 0
    P = orthonormalize(A, method)
    assert zero_columns(P) == [0, 4, 9]
    assert_orthonormal(P)
    assert orthonormalize(torch.zeros(50, 10, dtype=dtype), method).count_nonzero() == 0


@pytest.mark.parametrize("exponent", [-100, 0, 100])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_dependent_columns_become_exactly_zero(dtype, method, exponent, orthonormalize):
    A, expected = dependent(dtype)
    singular = torch.linalg.svdvals(A.double())
    rank = A.shape[1] - len(expected)
    assert singular[rank - 1] >= 1e6 * singular[rank]
    P = orthonormalize(A * 2.0**exponent, method)
    assert zero_columns(P) == expected
    assert_orthonormal(P)
    assert_reproduces(P, A)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("columns", [9, 16, 40])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_more_dependent_columns_than_others_become_exactly_zero(dtype, method, columns, seed, orthonormalize):
    A = rank_eight(columns, seed, dtype)
    P = orthonormalize(A, method)
    assert zero_columns(P) == list(range(8, columns))
    assert_orthonormal(P)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_rounding_of_a_product_is_no_signal(dtype, method, seed, orthonormalize):
    """B Q of a B of rank 8, as Dion computes it: columns 8 and on are rounding."""
    A = rank_eight(40, seed, dtype) @ torch.randn(40, 24, dtype=dtype)
    singular = torch.linalg.svdvals(A.double())
    assert singular[7] >= 1e6 * singular[8]
    P = orthonormalize(A, method)
    assert zero_columns(P) == list(range(8, 24))
    assert_orthonormal(P)


@pytest.mark.parametrize("method", METHODS)
def test_dependent_columns_of_mixed_scales_become_exactly_zero(method, orthonormalize):
    A, expected = dependent(torch.float32)
    A = A * 2.0 ** torch.linspace(-100, 100, 12).round()
    assert zero_columns(orthonormalize(A, method)) == expected


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_fewer_rows_than_columns_leave_as_many_columns_as_rows(dtype, method, orthonormalize):
    A = torch.randn(6, 10, dtype=dtype)
    P = orthonormalize(A, method)
    assert zero_columns(P) == [6, 7, 8, 9]
    assert_orthonormal(P)
    assert_reproduces(P, A)


@pytest.mark.parametrize("shape", [(30, 1), (1, 1), (1, 5), (2, 1)])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_single_rows_and_columns(dtype, method, shape, orthonormalize):
    A = torch.randn(shape, dtype=dtype)
    P = orthonormalize(A, method)
    assert zero_columns(P) == list(range(1, shape[1]))
    first = A[:, 0].double()
    expected = first / torch.linalg.vector_norm(first)
    assert (P[:, 0].double() * expected).sum().abs().sub(1).abs() <= 4 * torch.finfo(dtype).eps


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12, 1e30])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_scale_of_the_matrix_does_not_matter(dtype, method, scale, orthonormalize):
    A = conditioned(64, 16, 1e3, dtype) * scale
    P = orthonormalize(A, method)
    assert zero_columns(P) == []
    assert_orthonormal(P)
    assert_reproduces(P, A)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_scales_of_the_columns_do_not_matter(dtype, method, orthonormalize):
    plain = conditioned(64, 13, 100.0, dtype)
    A = plain * 10.0 ** torch.linspace(-30, 30, 13, dtype=dtype)[torch.randperm(13)]
    P = orthonormalize(A, method)
    assert zero_columns(P) == []
    assert_orthonormal(P)
    assert_reproduces(P, A)


@pytest.mark.parametrize("value", [1e-38, 1e-42])
@pytest.mark.parametrize("method", METHODS)
def test_the_smallest_numbers_give_no_nan(method, value, orthonormalize):
    P = orthonormalize(torch.randn(20, 4) * value, method)
    assert P.isfinite().all()
    assert (torch.linalg.vector_norm(P, dim=0) - 1).abs().max() <= 1e-2  # so few bits are left at 1e-42
