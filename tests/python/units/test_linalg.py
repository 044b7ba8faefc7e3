"""torch.ops.torchdion: column_normalize, sketch_ and gemm_ compute what they say, on every device."""

import math

import pytest
import torch
from torch import Tensor

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


class Operations:
    """Those of torchdion on a device, for tensors on the CPU."""

    def __init__(self, device: str) -> None:
        self.device = device

    def column_normalize(self, R: Tensor, Q: Tensor) -> Tensor:
        return torch.ops.torchdion.column_normalize(R.to(self.device), Q.to(self.device)).cpu()

    def sketch_(self, out: Tensor, *arguments: int) -> None:
        there = out.to(self.device)
        torch.ops.torchdion.sketch_(there, *arguments)
        out.copy_(there)

    def gemm_(self, C: list[Tensor], A: list[Tensor], B: list[Tensor], *factors: float) -> None:
        there = [[matrix.to(self.device) for matrix in matrices] for matrices in (C, A, B)]
        torch.ops.torchdion.gemm_(*there, *factors)
        for matrix, result in zip(C, there[0], strict=True):
            matrix.copy_(result)


@pytest.fixture
def ops(device: str) -> Operations:
    return Operations(device)


@pytest.mark.parametrize("Q_dtype", DTYPES)
@pytest.mark.parametrize("R_dtype", DTYPES)
def test_columns_are_divided_by_their_norms(R_dtype, Q_dtype, ops):
    R = torch.randn(23, 7).to(R_dtype)
    normalized = ops.column_normalize(R, torch.zeros(23, 7, dtype=Q_dtype))
    exact = R.double() / torch.linalg.vector_norm(R.double(), dim=0)
    assert normalized.dtype == Q_dtype
    rounding = (2 if Q_dtype == torch.float64 else 1) * torch.finfo(Q_dtype).eps  # FP64 rounds `exact` too
    subnormal = 6e-8 if Q_dtype == torch.float16 else 0
    assert ((normalized.double() - exact).abs() <= exact.abs() * rounding + subnormal).all()


def test_norms_are_summed_in_fp64(ops):
    R = torch.full((3_000_000, 1), 1 / 3)  # FP32 sums of so many squares lose 3 digits
    exact = 1 / math.sqrt(3_000_000)
    assert abs(ops.column_normalize(R, torch.zeros_like(R))[0, 0].item() / exact - 1) <= 1e-7


def test_a_zero_column_keeps_the_old_one_bit_for_bit(ops):
    R, Q = torch.randn(2, 9, 5), torch.randn(2, 9, 5)
    R[0, :, 3] = 0
    R[1, :, 1] = -0.0
    Q[0, 2, 3] = float("nan")  # whatever was there
    normalized = ops.column_normalize(R, Q)
    assert torch.equal(normalized[0, :, 3].view(torch.int32), Q[0, :, 3].view(torch.int32))
    assert torch.equal(normalized[1, :, 1].view(torch.int32), Q[1, :, 1].view(torch.int32))
    assert not torch.equal(normalized[0, :, 1], Q[0, :, 1])


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float32, 1e-30), (torch.float32, 1e30), (torch.float64, 1e120)])
def test_normalization_knows_no_scale(dtype, scale, ops):
    R = torch.randn(31, 6, dtype=dtype)
    Q = torch.zeros_like(R)
    difference = ops.column_normalize(R * scale, Q) - ops.column_normalize(R, Q)
    assert difference.abs().max() <= 2 * torch.finfo(dtype).eps


def test_normalization_follows_strides(ops):
    R, Q = torch.randn(3, 8, 5), torch.randn(3, 8, 5)
    expected = ops.column_normalize(R.mT.contiguous(), Q.mT.contiguous())
    assert torch.equal(ops.column_normalize(R.mT, Q.mT), expected)
    assert ops.column_normalize(torch.empty(0, 3), torch.empty(0, 3)).shape == (0, 3)


def test_a_nan_stays_in_its_column(ops):
    R = torch.randn(9, 4)
    R[5, 2] = float("nan")
    normalized = ops.column_normalize(R, torch.zeros(9, 4))
    assert normalized[:, 2].isnan().all()
    assert normalized[:, [0, 1, 3]].isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_block_of_a_sketch_is_the_same_block_of_the_whole(dtype, ops):
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


def test_a_sketch_has_the_moments_of_independent_normals(ops):
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


def test_every_seed_and_every_step_has_its_own_sketch(ops):
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


def product_case(dtype: torch.dtype, transposed: str) -> list[torch.Tensor]:
    shapes = {"C": (11, 6), "A": (11, 17), "B": (17, 6)}
    return [
        torch.randn(shape[::-1]).to(dtype).mT if name in transposed else torch.randn(shape).to(dtype)
        for name, shape in shapes.items()
    ]


@pytest.mark.parametrize("transposed", ["", "A", "B", "C", "AB", "AC", "BC", "ABC"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gemm_accumulates_in_place_whatever_the_strides(dtype, transposed, ops):
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
def test_gemm_mixes_dtypes_and_rounds_once(C_dtype, A_dtype, B_dtype, ops):
    C, A, B = torch.randn(200, 6).to(C_dtype), torch.randn(200, 9).to(A_dtype), torch.randn(9, 6).to(B_dtype)
    exact = 2 * A.double() @ B.double() + C.double()
    ops.gemm_([C], [A], [B], 2, 1)
    widest = torch.float64 if torch.float64 in (C_dtype, A_dtype, B_dtype) else torch.float32
    assert ((C - exact).abs() <= exact.abs() * torch.finfo(C_dtype).eps + 200 * torch.finfo(widest).eps).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_gemm_with_beta_zero_does_not_read_C(dtype, ops):
    C, A, B = product_case(dtype, "")
    C.fill_(float("nan"))
    ops.gemm_([C], [A], [B], 1, 0)
    assert C.isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_gemm_over_nothing_scales_C(dtype, ops):
    C = torch.ones(4, 3, dtype=dtype)
    ops.gemm_([C], [torch.empty(4, 0, dtype=dtype)], [torch.empty(0, 3, dtype=dtype)], 1, 0.5)
    assert torch.equal(C, torch.full((4, 3), 0.5, dtype=dtype))
    ops.gemm_([torch.empty(0, 3)], [torch.empty(0, 2)], [torch.empty(2, 3)])
