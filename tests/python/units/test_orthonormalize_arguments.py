"""torch.ops.torchdion.orthonormalize: batches, strides, dtypes, options, and what is refused."""

import pytest
import torch
from orthonormality import DTYPES, METHODS, assert_orthonormal, assert_reproduces, conditioned, zero_columns

orthonormalize = torch.ops.torchdion.orthonormalize


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_batch_of_hard_and_easy_matrices_equals_each_alone(dtype, method):
    deficient = conditioned(48, 12, 1.0, dtype)
    deficient[:, 3] = deficient[:, 1]
    matrices = [conditioned(48, 12, kappa, dtype) for kappa in (1.0, 1e9, 10.0, 1e5)]
    matrices += [deficient, torch.zeros(48, 12, dtype=dtype), matrices[0] * 1e-25]
    batch = orthonormalize(torch.stack(matrices), method)
    for A, P in zip(matrices, batch, strict=True):
        assert_orthonormal(P) if A.any() else None
        alone = orthonormalize(A, method)
        assert zero_columns(alone) == zero_columns(P)
        assert_reproduces(P, A) if A.any() else None
    assert (batch[0] - orthonormalize(matrices[0], method)).abs().max() <= 20 * torch.finfo(dtype).eps


@pytest.mark.parametrize("method", METHODS)
def test_leading_dimensions_count_matrices(method):
    A = torch.randn(2, 3, 20, 6, dtype=torch.float64)
    P = orthonormalize(A, method)
    assert P.shape == A.shape
    for i in range(2):
        for j in range(3):
            assert (P[i, j] - orthonormalize(A[i, j], method)).abs().max() <= 1e-13


@pytest.mark.timeout(60)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_in_gives_nan_out_in_that_matrix_only(dtype, method, bad):
    A = torch.randn(3, 30, 8, dtype=dtype)
    A[1, 11, 2] = bad
    P = orthonormalize(A, method)
    assert P[1].isnan().any(), "a matrix that is not finite must not look like a result"
    assert not (P[1] == 0).all(dim=0).any()
    assert (P[0] - orthonormalize(A[0], method)).abs().max() <= 20 * torch.finfo(dtype).eps
    assert (P[2] - orthonormalize(A[2], method)).abs().max() <= 20 * torch.finfo(dtype).eps


@pytest.mark.parametrize("method", METHODS)
def test_strides_do_not_matter_and_the_input_stays(method):
    wide = torch.randn(3, 9, 40, dtype=torch.float64)
    kept = wide.clone()
    P = orthonormalize(wide.mT, method)
    assert P.is_contiguous()
    assert torch.equal(P, orthonormalize(wide.mT.contiguous(), method))
    assert torch.equal(
        orthonormalize(wide[:, ::2, ::3].mT, method), orthonormalize(wide[:, ::2, ::3].mT.clone(), method)
    )
    assert torch.equal(wide, kept)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 5, 3), (2, 0, 0)])
@pytest.mark.parametrize("method", METHODS)
def test_empty_input_gives_empty_output(method, shape):
    assert orthonormalize(torch.empty(shape), method).shape == shape


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("method", METHODS)
def test_half_precision_is_computed_in_fp32_and_rounded_once(method, dtype):
    A = torch.randn(64, 16).to(dtype)
    expected = orthonormalize(A.float(), method).to(dtype)
    P = orthonormalize(A, method)
    assert P.dtype == dtype
    assert torch.equal(P, expected)


@pytest.mark.parametrize("oversample", [1.0, 1.5, 4.0])
def test_the_sketch_may_have_any_number_of_rows(oversample):
    A = conditioned(120, 20, 1e4, torch.float32)
    P = orthonormalize(A, "rcqr", oversample)
    assert_orthonormal(P)
    assert_reproduces(P, A)


def test_the_sketch_does_not_decide_the_result():
    A = conditioned(80, 20, 1e2, torch.float64)
    results = [orthonormalize(A, "rcqr", seed=seed, step=step) for seed, step in ((0, 0), (1, 0), (0, 1))]
    assert not torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    assert (results[0].abs() - results[1].abs()).abs().max() <= 1e-12


@pytest.mark.parametrize("dtype", DTYPES)
def test_cholesky_qr_is_the_method_of_that_name(dtype):
    A = conditioned(50, 12, 1e3, dtype)
    assert torch.equal(torch.ops.torchdion.cholesky_qr(A), orthonormalize(A, "cholesky_qr"))


def test_noise_says_how_much_of_each_column_is_rounding():
    A = torch.eye(10, 3, dtype=torch.float64)
    A[:, 2] = A[:, 0] + 1e-6 * A[:, 2]
    for method in METHODS:
        assert zero_columns(orthonormalize(A, method)) == []
        assert zero_columns(orthonormalize(A, method, noise=1e-8)) == []
        assert zero_columns(orthonormalize(A, method, noise=1e-5)) == [2]


@pytest.mark.parametrize(
    ("P", "options", "sentence"),
    [
        (torch.ones(3, 2, dtype=torch.int32), {}, "P must be real floating-point, got Int"),
        (torch.ones(3, 2, dtype=torch.complex64), {}, "P must be real floating-point, got ComplexFloat"),
        (torch.ones(3), {}, r"P must be \[\.\.\., rows, columns\], got shape \[3\]"),
        (
            torch.ones(3, 2),
            {"method": "svd"},
            "method must be 'auto', 'rcqr', 'cholesky_qr' or 'qr', got 'svd'",
        ),
        (torch.ones(9, 2), {"method": "rcqr", "oversample": 0.5}, "oversample must be .*, got 0.5"),
        (torch.ones(9, 2), {"method": "rcqr", "oversample": float("nan")}, "oversample must be .*, got nan"),
        (torch.ones(9, 2), {"method": "rcqr", "oversample": float("inf")}, "oversample must be .*, got inf"),
        (torch.ones(3, 2), {"noise": 1.0}, r"noise must be in \[0, 1\), got 1"),
        (torch.ones(3, 2), {"noise": -0.1}, r"noise must be in \[0, 1\), got -0.1"),
        (torch.ones(3, 2), {"noise": float("nan")}, r"noise must be in \[0, 1\), got nan"),
        (torch.ones(3, 2), {"precision": "tf32"}, "precision must be 'highest', 'high' or 'medium', got 'tf32'"),
    ],
)
def test_wrong_arguments_are_refused_in_one_sentence(P, options, sentence):
    with pytest.raises((TypeError, ValueError), match=f"^torchdion::orthonormalize: {sentence}$"):
        orthonormalize(P, **options)


def test_an_oversample_beyond_the_rows_is_plain_cholesky_qr():
    A = torch.randn(30, 5, dtype=torch.float64)
    assert torch.equal(orthonormalize(A, "rcqr", 1e300), orthonormalize(A, "cholesky_qr"))


def test_a_precision_of_high_rounds_nothing_on_the_cpu():
    A = conditioned(60, 12, 1e5, torch.float32)  # at the noise of TF32 operands most of its columns would be none
    assert torch.equal(orthonormalize(A, precision="high"), orthonormalize(A))


@pytest.mark.parametrize("scale", [1e-30, 1, 1e30])
@pytest.mark.parametrize("method", ["cholesky_qr", "rcqr"])
def test_at_medium_the_columns_that_rounding_to_bf16_leaves_are_orthonormal(method, scale):
    A = conditioned(60, 12, 20, torch.float32)
    Q = orthonormalize(A * scale, method, precision="medium").double()
    assert (Q.mT @ Q - torch.eye(12)).abs().max() < 1e-4
    assert (Q @ (Q.mT @ A.double()) - A).norm() < 2**-7 * A.double().norm()
    dropped = orthonormalize(conditioned(60, 12, 1e5, torch.float32), method, precision="medium").norm(dim=0) == 0
    assert 1 <= dropped.sum() <= 9
