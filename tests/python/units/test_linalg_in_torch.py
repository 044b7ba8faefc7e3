"""torch.ops.torchdion as citizens of torch: refusals, torch's own checks, torch.compile."""

import pytest
import torch

ops = torch.ops.torchdion


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


def test_gemm_takes_a_precision_of_which_medium_alone_rounds_on_the_cpu():
    A = torch.randn(20, 20, generator=torch.Generator().manual_seed(0))
    expected, found = torch.zeros(20, 20), torch.zeros(20, 20)
    ops.gemm_([expected], [A], [A])
    ops.gemm_([found], [A], [A], precision="high")
    assert torch.equal(found, expected)
    ops.gemm_([found], [A], [A], beta=0, precision="medium")
    rounded = A.bfloat16().double()
    torch.testing.assert_close(found.double(), rounded @ rounded, rtol=0, atol=1e-5)
    assert (found - expected).norm() > 1e-3 * expected.norm()
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


@pytest.mark.long
def test_compiled_code_gives_the_same_results():
    def update(X: torch.Tensor, Q: torch.Tensor) -> torch.Tensor:
        P = ops.orthonormalize(X @ Q, "rcqr", seed=1)
        return ops.column_normalize(X.mT @ P, Q) + 1

    X, Q = torch.randn(40, 30), torch.randn(30, 6)
    fresh = torch._inductor.utils.fresh_inductor_cache()  # the cache does not notice that an operation has changed
    with fresh:
        compiled = torch.compile(update, fullgraph=True)(X, Q)
    assert (compiled - update(X, Q)).abs().max() <= 1e-5


def test_sketches_leave_torchs_generator_alone():
    before = torch.get_rng_state()
    ops.sketch_(torch.empty(10, 10), 0, 0)
    ops.orthonormalize(torch.eye(20, 4), "rcqr")
    assert torch.equal(torch.get_rng_state(), before)
