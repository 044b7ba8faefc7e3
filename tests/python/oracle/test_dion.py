"""Dion against the FP64 oracle of Algorithm 1."""

from itertools import product

import pytest
import torch
from oracle import DionState, dion
from runs import allowance, error, follow, normals, run, start
from torch.nn import Parameter

import torchdion

# Twenty steps compound what rounding makes of each: in FP32 3.1e-4 was seen at μ = 0.
BOUND = {torch.float64: 1e-12, torch.float32: 2e-4}

# (m, n), seed, and hyperparameters, so that each is tried with several values: lr, μ, λ.
CASES = [
    ((48, 20), 0, (0.01, 0.95, 0.1)),
    ((20, 48), 0, (0.1, 0.9, 0.01)),
    ((24, 24), 0, (0.02, 0.0, 0.0)),
    ((37, 13), 0, (0.5, 0.99, 0.5)),
    ((1, 17), 0, (0.01, 0.95, 0.1)),
    ((17, 1), 0, (0.01, 0.5, 0.0)),
    ((1, 1), 0, (0.1, 0.95, 0.2)),
    ((130, 67), 0, (0.01, 0.95, 0.01)),
]


DTYPES, METHODS, ORIENTATIONS = (torch.float64, torch.float32), ("auto", "rcqr", "cholesky_qr", "qr"), ("left", "right")
RANK_FRACTIONS = (0.1, 0.5, 1.0)


def variants():
    """All; in `make test` each has one rank, in turn."""
    combinations = product(enumerate(CASES), enumerate(product(DTYPES, METHODS, ORIENTATIONS)))
    for (number, ((m, n), seed, hyper)), (turn, (dtype, method, orientation)) in combinations:
        for index, rank_fraction in enumerate(RANK_FRACTIONS):
            yield pytest.param(
                *(dtype, method, orientation, rank_fraction, (m, n), seed, hyper),
                id=f"{m}x{n}-{rank_fraction}-{orientation}-{method}-{dtype}",
                marks=pytest.mark.long if (number + turn + index) % len(RANK_FRACTIONS) != 0 else (),
            )


@pytest.mark.parametrize(
    ("dtype", "method", "orientation", "rank_fraction", "shape", "seed", "hyper"), list(variants())
)
def test_twenty_steps_equal_the_oracle(dtype, method, orientation, rank_fraction, shape, seed, hyper):
    lr, mu, weight_decay = hyper
    [X0], *gradients = normals(21, shape, seed=seed, dtype=dtype)
    X = Parameter(X0.clone())
    optimizer = torchdion.Dion(
        [X],
        lr,
        mu=mu,
        weight_decay=weight_decay,
        rank_fraction=rank_fraction,
        orientation=orientation,
        orthonormalize=method,
    )
    start(optimizer)
    expected = DionState(X0, torch.zeros(shape), optimizer.state[X]["Q"].clone())
    worst = 1.0
    for [G] in gradients:
        follow(optimizer, [X], [[G]])
        expected = dion(expected, G, lr, mu, weight_decay, orientation)
        worst = max(worst, expected.condition)
    assert worst <= 1e4
    bound = BOUND[dtype] * allowance(mu)
    assert error(X, expected.X, X0) <= bound
    M = optimizer.state[X]["momentum"]
    total = torch.linalg.vector_norm(torch.stack([G for [G] in gradients]).double())
    assert torch.linalg.vector_norm(M - expected.M) <= bound * total
    assert (optimizer.state[X]["Q"].abs() - expected.Q.abs()).abs().max() <= 10 * bound


@pytest.mark.parametrize("rank_fraction", [0.25, 1.0])
@pytest.mark.parametrize("orientation", ["left", "right"])
@pytest.mark.parametrize("scale", [1e-25, 1.0, 1e25])
def test_at_medium_twenty_steps_follow_the_oracle_as_far_as_bf16_operands_let_them(scale, orientation, rank_fraction):
    [X0], *gradients = normals(21, (130, 67), dtype=torch.float32)
    X = Parameter(X0.clone())
    optimizer = torchdion.Dion([X], rank_fraction=rank_fraction, orientation=orientation, precision="medium")
    start(optimizer)
    expected = DionState(X0, torch.zeros(130, 67), optimizer.state[X]["Q"].clone())
    for [G] in gradients:
        follow(optimizer, [X], [[G * scale]])
        expected = dion(expected, G.double() * scale, 0.01, 0.95, 0.01, orientation)
    assert 1e-3 < error(X, expected.X, X0) <= 2e-2  # BF16 operands are rounded to 2⁻⁹


@pytest.mark.parametrize("orientation", ["left", "right"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rounds_only_what_it_stores(dtype, orientation):
    """Every step starts the oracle from the stored X, M and Q, so that the rounding of one step is left.

    X, B and Q are rounded once each. With u the unit roundoff, that is u ‖X‖ in X; in the update, u from Q and,
    from B, κ(BQ) u by way of P and R.
    """
    u = torch.finfo(dtype).eps / 2
    lr, mu, weight_decay = 0.05, 0.95, 0.1
    [X0], *gradients = normals(9, (40, 28), dtype=dtype)
    X = Parameter(X0.clone())
    optimizer = torchdion.Dion([X], lr, mu=mu, weight_decay=weight_decay, rank_fraction=0.25, orientation=orientation)
    start(optimizer)
    for [G] in gradients:
        state = optimizer.state[X]
        before = DionState(X.detach().clone(), state["momentum"].clone(), state["Q"].clone())
        follow(optimizer, [X], [[G]])
        expected = dion(before, G, lr, mu, weight_decay, orientation)
        update = expected.X - (1 - lr * weight_decay) * before.X.double()
        assert expected.condition <= 10
        rounding = expected.X.norm() + 4 * expected.condition * update.norm()
        assert (X - expected.X).norm() <= u * rounding
        assert (state["momentum"] - expected.M).norm() <= 4 * u * expected.M.norm()
        assert {state["momentum"].dtype, state["Q"].dtype, X.dtype} == {dtype}


@pytest.mark.parametrize("orientation", ["left", "right"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_follows_the_oracle_for_twenty_steps(dtype, orientation):
    """From X = 0, so that the weights are no larger than the distance travelled: u per step."""
    u = torch.finfo(dtype).eps / 2
    gradients = normals(20, (40, 28), dtype=dtype)
    X = Parameter(torch.zeros(40, 28, dtype=dtype))
    optimizer = torchdion.Dion([X], 0.05, rank_fraction=0.25, weight_decay=0.0, orientation=orientation)
    start(optimizer)
    expected = DionState(X.detach().clone(), torch.zeros(40, 28), optimizer.state[X]["Q"].clone())
    for [G] in gradients:
        follow(optimizer, [X], [[G]])
        expected = dion(expected, G, 0.05, 0.95, 0.0, orientation)
        assert expected.condition <= 20
    assert error(X, expected.X, torch.zeros(40, 28)) <= 20 * u


@pytest.mark.parametrize("orientation", ["left", "right"])
def test_the_update_has_the_shape_factor_of_X(orientation):
    """P Qᵀ has r orthonormal columns on one side and unit ones on the other: its norm is sqrt(r) exactly."""
    for m, n in ((40, 10), (10, 40)):
        [[X0], [G]] = normals(2, (m, n))
        [X] = run([X0], [[G]], lr=0.1, weight_decay=0.0, rank_fraction=0.5, orientation=orientation)
        assert torch.linalg.vector_norm(X - X0).item() == pytest.approx(0.1 * (m / n) ** 0.5 * 5**0.5, rel=1e-12)


def test_a_step_of_full_rank_without_memory_leaves_no_momentum():
    [[X0], [G]] = normals(2, (30, 12))
    optimizer = torchdion.Dion([X := Parameter(X0.clone())], mu=0.0)
    follow(optimizer, [X], [[G]])
    assert optimizer.state[X]["momentum"].abs().max() <= 1e-13


@pytest.mark.parametrize("shape", [(40, 28), (28, 40), (9,)])
def test_maximize_is_descent_on_the_negative_gradient(shape):
    [X0], *gradients = normals(6, shape)
    [up] = run([X0], gradients, maximize=True)
    [down] = run([X0], [[-G] for [G] in gradients])
    assert torch.equal(up, down)


@pytest.mark.parametrize("shape", [(12, 20), (9,)])
def test_lr_multiplier_and_tensor_lr_are_factors_of_one_learning_rate(shape):
    [X0], *gradients = normals(6, shape)
    [expected] = run([X0], gradients, lr=0.03)
    params = [Parameter(X0.clone())]
    optimizer = torchdion.Dion([{"params": params, "lr_multiplier": 0.25}], lr=torch.tensor(0.12, dtype=torch.float64))
    follow(optimizer, params, gradients)
    assert error(params[0], expected, X0) <= 1e-14


def test_error_feedback_keeps_what_the_rank_leaves_out():
    """In the span of P the momentum decays by μ; outside of it, it keeps the gradient whole."""
    [[A, B]] = normals(1, (30, 8), (8, 20))
    G = A @ B
    X = Parameter(torch.zeros(30, 20, dtype=torch.float64))
    optimizer = torchdion.Dion([X], mu=0.9, rank_fraction=0.2)
    follow(optimizer, [X], [[G]])
    M = optimizer.state[X]["momentum"]
    P = torch.linalg.svd(X.detach()).Vh[:4].mT  # "right": the update is Q Pᵀ
    assert (M @ P - 0.9 * G @ P).abs().max() <= 1e-12
    assert ((M - M @ P @ P.mT) - (G - G @ P @ P.mT)).abs().max() <= 1e-12
    assert torch.linalg.vector_norm(G - G @ P @ P.mT) >= 0.1 * torch.linalg.vector_norm(G)
