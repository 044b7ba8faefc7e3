"""Gradients that are hard: rank-deficient, row-sparse, of any scale, and of very many tiny matrices."""

import random

import pytest
import torch
from oracle import DionState, dion
from runs import error, follow, normals, start
from torch import Tensor
from torch.nn import Parameter

import torchdion

METHODS = ["auto", "rcqr", "cholesky_qr", "qr"]


def integers(generator: torch.Generator, m: int, n: int, k: int) -> tuple[Tensor, Tensor]:
    """m×k and k×n of small integers, both of full rank with singular values far from zero."""
    while True:
        left = torch.randint(-3, 4, (m, k), generator=generator).double()
        right = torch.randint(-3, 4, (k, n), generator=generator).double()
        singular = torch.linalg.svdvals(left @ right)
        if singular[k - 1] > 0.1 * singular[0]:
            return left, right


@pytest.mark.parametrize("seed", range(60))
def test_rank_deficient_gradients_leave_zero_columns_and_orthonormal_ones(seed):
    """Of r columns of P, the first k live: their columns of Q are unit ones; the others keep theirs bit for bit."""
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    k, m, n = draw.randint(1, 4), draw.randint(9, 40), draw.randint(9, 40)
    orientation, scale = draw.choice(["left", "right"]), draw.choice([1e-30, 1.0, 1e30])
    left, right = integers(generator, m, n, k)
    X = Parameter(torch.zeros(m, n, dtype=torch.float64))
    optimizer = torchdion.Dion(
        [X],
        lr=0.1,
        weight_decay=0.0,
        rank_fraction=draw.choice([0.7, 1.0]),
        orientation=orientation,
        orthonormalize=draw.choice(METHODS),
    )
    start(optimizer)
    # B q must not cancel, which would make rounding look like signal: Q begins with a basis of B's rows
    basis = torch.linalg.qr(right.mT if orientation == "left" else left).Q
    Q = optimizer.state[X]["Q"]
    Q.copy_(basis @ torch.randn(k, Q.shape[1], generator=generator, dtype=torch.float64))
    Q[:, :k] = basis
    for _ in range(3):
        weights, Q = X.detach().clone(), optimizer.state[X]["Q"].clone()
        mixing = torch.eye(k, dtype=torch.float64) + 0.1 * torch.rand(k, k, generator=generator, dtype=torch.float64)
        follow(optimizer, [X], [[left @ mixing @ right * scale]])
        new = optimizer.state[X]["Q"]
        assert X.isfinite().all() and new.isfinite().all() and optimizer.state[X]["momentum"].isfinite().all()
        assert torch.equal(new[:, k:], Q[:, k:]), "a zero column of P keeps its column of Q"
        live = new[:, :k]
        assert (torch.linalg.vector_norm(live, dim=0) - 1).abs().max() <= 1e-14
        update = (weights - X.detach()) / (0.1 * (m / n) ** 0.5)
        assert torch.linalg.svdvals(update)[k] <= 1e-12
        body = update if orientation == "left" else update.mT
        P = torch.linalg.lstsq(live, body.mT).solution.mT
        assert (P.mT @ P - torch.eye(k)).abs().max() <= 1e-10
        assert (P @ live.mT - body).abs().max() <= 1e-12


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-4), (torch.float64, 1e-12)])
@pytest.mark.parametrize("k", [1, 2, 3, 8])
def test_the_first_update_has_the_rank_of_the_gradient(k, dtype, bound, method):
    """From a random Q some columns of B Q nearly cancel; the rounding that is left of them is no direction."""
    for seed in range(40):
        left, right = integers(torch.Generator().manual_seed(seed), 40, 30, k)
        X = Parameter(torch.zeros(40, 30, dtype=dtype))
        X.grad = (left @ right).to(dtype)
        torchdion.Dion([X], lr=1.0, weight_decay=0.0, orthonormalize=method, seed=seed).step()
        values = torch.linalg.svdvals(X.detach().double() / (40 / 30) ** 0.5)
        assert values[k:].max() <= 1e-6, f"seed {seed}"
        assert (values.square().sum() - k).abs() <= k * bound, f"seed {seed}"


@pytest.mark.parametrize("orientation", ["left", "right"])
@pytest.mark.parametrize("method", METHODS)
def test_row_sparse_gradients_follow_the_oracle_and_leave_the_other_rows(method, orientation):
    """Of 200 rows a step touches 12, as of an embedding on Dion; 120 are never touched."""
    [X0] = normals(1, (200, 16))[0]
    generator = torch.Generator().manual_seed(0)
    X = Parameter(X0.clone())
    optimizer = torchdion.Dion(
        [X], 0.1, weight_decay=0.0, rank_fraction=0.5, orientation=orientation, orthonormalize=method
    )
    start(optimizer)
    expected = DionState(X0, torch.zeros(200, 16), optimizer.state[X]["Q"].clone())
    for _ in range(10):
        G = torch.zeros(200, 16, dtype=torch.float64)
        rows = torch.randperm(80, generator=generator)[:12]
        G[rows] = torch.randn(12, 16, generator=generator, dtype=torch.float64)
        follow(optimizer, [X], [[G]])
        expected = dion(expected, G, 0.1, 0.95, 0.0, orientation)
        assert expected.condition <= 1e4
    assert error(X, expected.X, X0) <= 1e-10
    assert torch.equal(X[80:], X0[80:])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
def test_columns_and_steps_of_very_different_scale(dtype, bound, method):
    """Steps from 1e-30 to 1e30; the momentum of the large ones drowns the small ones, in the oracle as here."""
    scales = [1e-30, 1e-20, 1e-5, 1.0, 1e10, 1e30]
    [X0], *gradients = normals(7, (24, 15), dtype=dtype)
    X = Parameter(X0.clone())
    optimizer = torchdion.Dion([X], 0.1, rank_fraction=0.4, orthonormalize=method)
    start(optimizer)
    expected = DionState(X0, torch.zeros(24, 15), optimizer.state[X]["Q"].clone())
    for [G], scale in zip(gradients, scales, strict=True):
        follow(optimizer, [X], [[G * scale]])
        expected = dion(expected, G * scale, 0.1, 0.95, 0.01, "right")
        assert expected.condition <= 1e4
    assert error(X, expected.X, X0) <= bound


def test_ten_thousand_tiny_matrices_each_follow_the_oracle():
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(1, 5, (10_000, 2), generator=generator).tolist()
    params = [Parameter(torch.randn(m, n, generator=generator, dtype=torch.float64)) for m, n in sizes]
    starts = [param.detach().clone() for param in params]
    optimizer = torchdion.Dion(params, 0.1, rank_fraction=0.5)
    start(optimizer)
    Qs = [optimizer.state[param]["Q"].clone() for param in params]
    steps = [[torch.randn(m, n, generator=generator, dtype=torch.float64) for m, n in sizes] for _ in range(2)]
    follow(optimizer, params, steps)
    assert optimizer.stats()["parameters"]["dion"] == 10_000
    assert len({Q[0, 0].item() for Q in Qs}) >= 9_990, "each from its own start, of 24 bits"
    compared = 0
    for index in range(0, 10_000, 97):
        expected, worst = DionState(starts[index], torch.zeros(sizes[index]), Qs[index]), 1.0
        for step in steps:
            expected = dion(expected, step[index], 0.1, 0.95, 0.01, "right")
            worst = max(worst, expected.condition)
        if worst <= 1e4:
            compared += 1
            assert error(params[index], expected.X, starts[index]) <= 1e-10
    assert compared >= 100
    assert all(param.isfinite().all() for param in params)
