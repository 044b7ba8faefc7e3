"""Lion and AdamW against their oracles, and AdamW against torch's own."""

import pytest
import torch
from oracle import adamw, lion
from runs import error, follow, normals, run
from torch.nn import Parameter

import torchdion

BOUND = {torch.float64: 1e-13, torch.float32: 1e-4}
SHAPES = [(), (1,), (37,), (5000,), (30, 20), (4, 3, 3, 3)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("betas", [None, (0.9, 0.99), (0.0, 0.0), (0.5, 0.25)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_lion_equals_its_oracle(dtype, betas, shape):
    [X0], *gradients = normals(21, shape, dtype=dtype)
    X = Parameter(X0.clone())
    optimizer = torchdion.Lion([X], lr=0.01, betas=betas, weight_decay=0.1)
    follow(optimizer, [X], gradients)
    expected, M = X0, torch.zeros(shape)
    for [G] in gradients:
        expected, M = lion(expected, M, G, 0.01, *(betas or (0.95, 0.98)), 0.1)
    assert error(X, expected, X0) <= BOUND[dtype]
    assert (optimizer.state[X]["momentum"] - M).abs().max() <= 10 * BOUND[dtype]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("epsilon", [1e-8, 1e-2])
@pytest.mark.parametrize("betas", [None, (0.9, 0.999), (0.0, 0.0)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_adamw_equals_its_oracle_and_torchs(dtype, betas, epsilon, shape):
    [X0], *gradients = normals(21, shape, dtype=dtype)
    X, Y = Parameter(X0.clone()), Parameter(X0.clone())
    optimizer = torchdion.AdamW([X], lr=0.01, betas=betas, epsilon=epsilon, weight_decay=0.1)
    beta1, beta2 = betas or (0.9, 0.95)
    follow(optimizer, [X], gradients)
    follow(torch.optim.AdamW([Y], 0.01, (beta1, beta2), epsilon, 0.1), [Y], gradients)
    expected, M, V = X0, torch.zeros(shape), torch.zeros(shape)
    for t, [G] in enumerate(gradients, 1):
        expected, M, V = adamw(expected, M, V, G, t, 0.01, beta1, beta2, epsilon, 0.1)
    assert error(Y, expected, X0) <= BOUND[dtype]
    assert error(X, expected, X0) <= BOUND[dtype]
    assert (optimizer.state[X]["variance"] - V).abs().max() <= 20 * BOUND[dtype]


@pytest.mark.parametrize("algorithm", ["lion", "adamw"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rounds_only_what_it_stores(dtype, algorithm):
    u = torch.finfo(dtype).eps / 2
    [X0], *gradients = normals(9, (400,), dtype=dtype)
    X = Parameter(X0.clone())
    optimizer = torchdion.Dion([{"params": [X], "algorithm": algorithm}], lr=0.05, weight_decay=0.1)
    for t, [G] in enumerate(gradients, 1):
        state = {key: value.clone() for key, value in optimizer.state[X].items()} or {
            "momentum": torch.zeros(400),
            "variance": torch.zeros(400),
        }
        before = X.detach().clone()
        follow(optimizer, [X], [[G]])
        if algorithm == "lion":
            expected, M = lion(before, state["momentum"], G, 0.05, 0.95, 0.98, 0.1)
        else:
            expected, M, V = adamw(before, state["momentum"], state["variance"], G, t, 0.05, 0.9, 0.95, 1e-8, 0.1)
            assert (optimizer.state[X]["variance"] - V).abs().le(u * V.abs() * 1.01 + 1e-7).all()
        assert (optimizer.state[X]["momentum"] - M).abs().le(u * M.abs() * 1.01 + 1e-7).all()
        assert (X - expected).abs().le(u * expected.abs() * 1.01 + 1e-6).all()


def test_the_update_of_lion_has_rms_one():
    [[X0], [G]] = normals(2, (1000,))
    [X] = run([X0], [[G]], lr=0.01, weight_decay=0.0)
    assert ((X - X0).abs() - 0.01).abs().max() <= 1e-15


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_lion_leaves_alone_what_has_no_gradient_and_no_momentum(dtype):
    [X0] = normals(1, (50,), dtype=dtype)[0]
    X = run([X0], [[torch.zeros(50, dtype=dtype)]], weight_decay=0.0)[0]
    assert torch.equal(X, X0)


@pytest.mark.parametrize("scalar_algorithm", ["lion", "adamw"])
def test_vectors_and_numbers_get_the_scalar_algorithm(scalar_algorithm):
    shapes = [(9,), (), (1,), (6, 4)]
    starts, *gradients = normals(4, *shapes)
    params = [Parameter(X0.clone()) for X0 in starts]
    optimizer = torchdion.Dion(params, scalar_algorithm=scalar_algorithm)
    follow(optimizer, params, gradients)
    assert optimizer.stats()["parameters"] == {"dion": 1, scalar_algorithm: 3}
    named = [Parameter(X0.clone()) for X0 in starts]
    groups = [{"params": named[:3], "algorithm": scalar_algorithm}, {"params": named[3:], "algorithm": "dion"}]
    follow(torchdion.Dion(groups), named, gradients)
    assert all(map(torch.equal, params[:3], named[:3]))


@pytest.mark.parametrize("algorithm", ["lion", "adamw"])
def test_the_number_of_threads_changes_no_bit(algorithm):
    starts, *gradients = normals(3, (100_003,), (70, 90), dtype=torch.float32)
    runs = []
    for threads in (1, 2, 7):
        torch.set_num_threads(threads)
        params = [Parameter(X0.clone()) for X0 in starts]
        follow(torchdion.Dion([{"params": params, "algorithm": algorithm}]), params, gradients)
        runs.append(params)
    for other in runs[1:]:
        assert all(map(torch.equal, runs[0], other))
