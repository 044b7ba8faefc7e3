"""torch.ops.torchdion: column_normalize, sketch_ and gemm_, and all operations as citizens of torch."""

import math

import pytest
import torch

ops = torch.ops.torchdion
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("Q_dtype", DTYPES)
@pytest.mark.parametrize("R_dtype", DTYPES)
def test_columns_are_divided_by_their_norms(R_dtype, Q_dtype):
    R = torch.randn(23, 7).to(R_dtype)
    normalized = ops.column_normalize(R, torch.zeros(23, 7, dtype=Q_dtype))
    exact = R.double() / torch.linalg.vector_norm(R.double(), dim=0)
    assert normalized.dtype == Q_dtype
    subnormal = 6e-8 if Q_dtype == torch.float16 else 0
    assert ((normalized.double() - exact).abs() <= exact.abs() * torch.finfo(Q_dtype).eps + subnormal).all()


def test_norms_are_summed_in_fp64():
    R = torch.full((3_000_000, 1), 1 / 3)  # FP32 sums of so many squares lose 3 digits
    exact = 1 / math.sqrt(3_000_000)
    assert abs(ops.column_normalize(R, torch.zeros_like(R))[0, 0].item() / exact - 1) <= 1e-7


def test_a_zero_column_keeps_the_old_one_bit_for_bit():
    R, Q = torch.randn(2, 9, 5), torch.randn(2, 9, 5)
    R[0, :, 3] = 0
    R[1, :, 1] = -0.0
    Q[0, 2, 3] = float("nan")  # whatever was there
    normalized = ops.column_normalize(R, Q)
    assert torch.equal(normalized[0, :, 3].view(torch.int32), Q[0, :, 3].view(torch.int32))
    assert torch.equal(normalized[1, :, 1].view(torch.int32), Q[1, :, 1].view(torch.int32))
    assert not torch.equal(normalized[0, :, 1], Q[0, :, 1])


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float32, 1e-30), (torch.float32, 1e30), (torch.float64, 1e120)])
def test_normalization_knows_no_scale(dtype, scale):
    R = torch.randn(31, 6, dtype=dtype)
    Q = torch.zeros_like(R)
    difference = ops.column_normalize(R * scale, Q) - ops.column_normalize(R, Q)
    assert difference.abs().max() <= 2 * torch.finfo(dtype).eps


def test_normalization_follows_strides():
    R, Q = torch.randn(3, 8, 5), torch.randn(3, 8, 5)
    expected = ops.column_normalize(R.mT.contiguous(), Q.mT.contiguous())
    assert torch.equal(ops.column_normalize(R.mT, Q.mT), expected)
    assert ops.column_normalize(torch.empty(0, 3), torch.empty(0, 3)).shape == (0, 3)


def test_a_nan_stays_in_its_column():
    R = torch.randn(9, 4)
    R[5, 2] = float("nan")
    normalized = ops.column_normalize(R, torch.zeros(9, 4))
    assert normalized[:, 2].isnan().all()
    assert normalized[:, [0, 1, 3]].isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_block_of_a_sketch_is_the_same_block_of_the_whole(dtype):
    whole = torch.empty(50, 41, dtype=dtype)
    ops.sketch_(whole, 5, 9)
    for rows, columns in (
        (slice(0, 1), slice(0, 41)),
        (slice(7, 50), slice(3, 10)),
        (slice(49, 50), slice(38, 41)),
    ):
        expected = whole[rows, columns]
        block = torch.empty(expected.shape, dtype=dtype)
        ops.sketch_(block, 5, 9, rows.start, columns.start)
        assert torch.equal(block, expected)
    strided = torch.empty(41, 50, dtype=dtype).mT
    ops.sketch_(strided, 5, 9)
    assert torch.equal(strided, whole)


def test_a_sketch_has_the_moments_of_independent_normals():
    S = torch.empty(1000, 1000, dtype=torch.float64)
    ops.sketch_(S, 1, 2)
    deviation = 1e-3  # of the mean of 10⁶ normals
    assert abs(S.mean()) <= 5 * deviation
    assert abs(S.square().mean() - 1) <= 5 * deviation * 2**0.5
    assert abs(S.pow(3).mean()) <= 5 * deviation * 15**0.5
    assert abs(S.pow(4).mean() - 3) <= 5 * deviation * 96**0.5
    assert 4.4 <= S.abs().max() <= 6.5
    for neighbour in (S.roll(1, 0), S.roll(1, 1), S.roll(2, 1), S.roll((1, 1), (0, 1)), S.mT):
        assert abs((S * neighbour).mean() - (S.diagonal().square().sum() / 1e6 if neighbour is S.mT else 0)) <= 7e-3


def test_every_seed_and_every_step_has_its_own_sketch():
    def sketch(seed: int, step: int) -> torch.Tensor:
        S = torch.empty(40, 50)
        ops.sketch_(S, seed, step)
        return S

    first = sketch(0, 0)
    assert torch.equal(first, sketch(0, 0))
    others = [sketch(seed, step) for seed, step in ((1, 0), (0, 1), (-1, 0), (2**32, 0), (0, 2**32), (2**63 - 1, 5))]
    for other in others:
        assert abs((first * other).mean()) <= 0.12  # 5 standard deviations of the mean of 2000 products
    assert len({tuple(S[0, :4].tolist()) for S in [first, *others]}) == len(others) + 1


def test_sketches_leave_torchs_generator_alone():
    before = torch.get_rng_state()
    ops.sketch_(torch.empty(10, 10), 0, 0)
    ops.orthonormalize(torch.eye(20, 4), "rcqr")
    assert torch.equal(torch.get_rng_state(), before)


def product_case(dtype: torch.dtype, transposed: str) -> list[torch.Tensor]:
    shapes = {"C": (11, 6), "A": (11, 17), "B": (17, 6)}
    return [
        torch.randn(shape[::-1]).to(dtype).mT if name in transposed else torch.randn(shape).to(dtype)
        for name, shape in shapes.items()
    ]


@pytest.mark.parametrize("transposed", ["", "A", "B", "C", "AB", "AC", "BC", "ABC"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gemm_accumulates_in_place_whatever_the_strides(dtype, transposed):
    C, A, B = product_case(dtype, transposed)
    D = C.clone()
    exact = -0.7 * A.double() @ B.double() + 0.3 * C.double()
    ops.gemm_([C, D], [A, A], [B, B], -0.7, 0.3)
    accumulated = 17 * torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    assert ((C.double() - exact).abs() <= exact.abs() * torch.finfo(dtype).eps + 10 * accumulated).all()
    assert torch.equal(C, D)


@pytest.mark.parametrize(
    ("C_dtype", "A_dtype", "B_dtype"),
    [
        (torch.float32, torch.bfloat16, torch.float32),
        (torch.bfloat16, torch.float32, torch.float32),
        (torch.float32, torch.float64, torch.float32),
        (torch.float64, torch.float32, torch.float16),
        (torch.float16, torch.bfloat16, torch.float64),
    ],
)
def test_gemm_mixes_dtypes_and_rounds_once(C_dtype, A_dtype, B_dtype):
    C, A, B = torch.randn(200, 6).to(C_dtype), torch.randn(200, 9).to(A_dtype), torch.randn(9, 6).to(B_dtype)
    exact = 2 * A.double() @ B.double() + C.double()
    ops.gemm_([C], [A], [B], 2, 1)
    widest = torch.float64 if torch.float64 in (C_dtype, A_dtype, B_dtype) else torch.float32
    assert ((C - exact).abs() <= exact.abs() * torch.finfo(C_dtype).eps + 200 * torch.finfo(widest).eps).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_gemm_with_beta_zero_does_not_read_C(dtype):
    C, A, B = product_case(dtype, "")
    C.fill_(float("nan"))
    ops.gemm_([C], [A], [B], 1, 0)
    assert C.isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_gemm_over_nothing_scales_C(dtype):
    C = torch.ones(4, 3, dtype=dtype)
    ops.gemm_([C], [torch.empty(4, 0, dtype=dtype)], [torch.empty(0, 3, dtype=dtype)], 1, 0.5)
    assert torch.equal(C, torch.full((4, 3), 0.5, dtype=dtype))
    ops.gemm_([torch.empty(0, 3)], [torch.empty(0, 2)], [torch.empty(2, 3)])


ONES = torch.ones(4, 4)


@pytest.mark.parametrize(
    ("C", "A", "B", "sentence"),
    [
        ([ONES], [ONES, ONES], [ONES], "the lists must be equally long, got 1, 2 and 1"),
        ([ONES], [ONES[:, :3]], [ONES], r"A \[4, 3\] times B \[4, 4\] does not fit C \[4, 4\]"),
        ([ONES], [ONES.int()], [ONES], "A must be real floating-point, got Int"),
        ([ONES], [ONES], [ONES[0]], r"B must hold 2-D tensors, got shape \[4\]"),
        (
            [ONES, ONES.double()],
            [ONES] * 2,
            [ONES] * 2,
            "the matrices of C must be alike in shape, strides and dtype",
        ),
        (
            [ONES[::2, ::2]],
            [ONES[:2]],
            [ONES[:, :2]],
            r"the rows or the columns .* C must be contiguous, got strides .*",
        ),
        (
            [ONES],
            [torch.ones(4, 1).expand(4, 4)],
            [ONES],
            r"the rows or the columns .* A must be contiguous.*",
        ),
    ],
)
def test_gemm_refuses_what_does_not_fit_in_one_sentence(C, A, B, sentence):
    with pytest.raises((TypeError, ValueError), match=f"^torchdion::gemm_: {sentence}$"):
        ops.gemm_(C, A, B)


def test_gemm_takes_a_precision_which_rounds_nothing_on_the_cpu():
    A = torch.randn(20, 20, generator=torch.Generator().manual_seed(0))
    expected, found = torch.zeros(20, 20), torch.zeros(20, 20)
    ops.gemm_([expected], [A], [A])
    ops.gemm_([found], [A], [A], precision="medium")
    assert torch.equal(found, expected)
    sentence = "torchdion::gemm_: precision must be 'highest', 'high' or 'medium', got 'tf32'"
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        ops.gemm_([found], [A], [A], precision="tf32")


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: ops.sketch_(torch.ones(3), 0, 0),
            r"sketch_: out must be \[rows, columns\], got shape \[3\]",
        ),
        (
            lambda: ops.sketch_(torch.ones(3, 3).int(), 0, 0),
            "sketch_: out must be real floating-point, got Int",
        ),
        (lambda: ops.sketch_(ONES, 0, 0, -1), "sketch_: offsets must not be negative, got -1 and 0"),
        (
            lambda: ops.column_normalize(ONES, ONES[1:]),
            r"column_normalize: Q must have R's shape \[4, 4\], got \[3, 4\]",
        ),
        (
            lambda: ops.column_normalize(ONES.long(), ONES),
            "column_normalize: R must be real floating-point, got Long",
        ),
        (
            lambda: ops.column_normalize(ONES, ONES.bool()),
            "column_normalize: Q must be real floating-point, got Bool",
        ),
        (
            lambda: ops.column_normalize(ONES[0], ONES[0]),
            r"column_normalize: R must be \[\.\.\., rows, columns\], .*",
        ),
    ],
)
def test_other_operations_refuse_wrong_arguments_in_one_sentence(call, sentence):
    with pytest.raises((TypeError, ValueError), match=f"^torchdion::{sentence}$"):
        call()


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (ops.column_normalize, (torch.randn(2, 6, 3), torch.randn(2, 6, 3))),
        (ops.orthonormalize, (torch.randn(2, 6, 3),)),
        (ops.orthonormalize, (torch.randn(3, 20).mT, "rcqr", 1.5, 3, 4, 1e-6, "high")),
        (ops.cholesky_qr, (torch.randn(6, 3, dtype=torch.float64),)),
        (ops.sketch_, (torch.empty(4, 5), 1, 2, 3, 4)),
        (ops.gemm_, ([torch.randn(4, 2)], [torch.randn(4, 3)], [torch.randn(3, 2)], 0.5, 2.0)),
    ],
)
def test_torchs_own_checks_of_operations_pass(op, args):
    assert set(torch.library.opcheck(op.default, args).values()) == {"SUCCESS"}


def test_compiled_code_gives_the_same_results():
    def update(X: torch.Tensor, Q: torch.Tensor) -> torch.Tensor:
        P = ops.orthonormalize(X @ Q, "rcqr", seed=1)
        return ops.column_normalize(X.mT @ P, Q) + 1

    X, Q = torch.randn(40, 30), torch.randn(30, 6)
    fresh = torch._inductor.utils.fresh_inductor_cache()  # the cache does not notice that an operation has changed
    with fresh:
        compiled = torch.compile(update, fullgraph=True)(X, Q)
    assert (compiled - update(X, Q)).abs().max() <= 1e-5
