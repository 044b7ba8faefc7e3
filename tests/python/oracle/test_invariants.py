"""What Dion's trajectory must not depend on, and what must not change at all."""

import copy

import pytest
import torch
from oracle import DionState, dion
from runs import error, follow, normals, run, start
from torch import Tensor
from torch.nn import Parameter

import torchdion

METHODS = ["auto", "rcqr", "cholesky_qr", "qr"]
ORIENTATIONS = ["left", "right"]


def factor(optimizer: torchdion.Dion, X: Parameter) -> Tensor:
    return optimizer.state[X]["Q"]


@pytest.mark.parametrize("scale", [1e-30, 1e30])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
def test_the_scale_of_the_gradients_does_not_matter(dtype, bound, method, scale):
    [X0], *gradients = normals(10, (30, 22), dtype=dtype)
    options = {"rank_fraction": 0.5, "orthonormalize": method}
    [X] = run([X0], [[G * scale] for [G] in gradients], **options)
    [expected] = run([X0], gradients, **options)
    assert error(X, expected, X0) <= bound


@pytest.mark.parametrize("scale", [2.0**-110, 2.0**-90, 2.0**100])
def test_a_power_of_two_as_scale_changes_no_bit(scale):
    [X0], *gradients = normals(6, (30, 22), dtype=torch.float32)
    [X] = run([X0], [[G * scale] for [G] in gradients], rank_fraction=0.5)
    assert torch.equal(X, run([X0], gradients, rank_fraction=0.5)[0])


def test_the_smallest_gradients_do_not_destroy_the_weights():
    [X0], *gradients = normals(4, (30, 22), dtype=torch.float32)
    [X] = run([X0], [[G * 1e-42] for [G] in gradients], lr=0.01, rank_fraction=0.5)
    assert X.isfinite().all()


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_zero_gradient_and_momentum_change_nothing_but_weight_decay(dtype, method, orientation):
    [[X0]] = normals(1, (12, 9), dtype=dtype)
    optimizer = torchdion.Dion(
        [X := Parameter(X0.clone())], 0.5, weight_decay=0.5, orthonormalize=method, orientation=orientation
    )
    start(optimizer)
    Q = factor(optimizer, X).clone()
    follow(optimizer, [X], [[torch.zeros_like(X0)]] * 2)
    assert torch.equal(X, X0 * 0.75 * 0.75)
    assert torch.equal(factor(optimizer, X), Q)
    assert optimizer.state[X]["momentum"].count_nonzero() == 0


@pytest.mark.parametrize("method", METHODS)
def test_zero_gradients_and_zero_lr_are_a_no_op(method):
    """What distributed checkpointing does to create the states of a fresh optimizer."""
    [[X0], *gradients] = normals(4, (12, 9))
    X = Parameter(X0.clone())
    optimizer = torchdion.Dion([X], orthonormalize=method)
    start(optimizer)
    assert torch.equal(X, X0)
    Q = factor(optimizer, X).clone()
    start(optimizer)
    assert torch.equal(factor(optimizer, X), Q)
    start_of_another = torchdion.Dion([Parameter(X0.clone())], orthonormalize=method)
    start(start_of_another)
    assert torch.equal(start_of_another.state[start_of_another.param_groups[0]["params"][0]]["Q"], Q)
    follow(optimizer, [X], gradients)
    assert not torch.equal(factor(optimizer, X), Q)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_gradients_of_rank_8_at_full_rank_fraction_move_the_weights_by_rank_8(dtype, method, orientation):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(-3, 4, (40, 8), generator=generator).to(dtype)
    X = Parameter(torch.zeros(40, 24, dtype=dtype))
    optimizer = torchdion.Dion([X], 0.1, weight_decay=0.0, orthonormalize=method, orientation=orientation)
    columns = torch.randint(-3, 4, (8, 24), generator=generator).to(dtype)
    for _ in range(6):
        before = X.detach().clone()
        follow(optimizer, [X], [[rows @ columns * torch.rand((), generator=generator, dtype=dtype)]])
        assert X.isfinite().all()
        singular = torch.linalg.svdvals(X.detach().double() - before) / (0.1 * (40 / 24) ** 0.5)
        assert singular[8] <= 1e-5
        assert singular.square().sum().item() == pytest.approx(8, rel=1e-5)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("method", METHODS)
def test_momentum_with_fewer_nonzero_rows_than_r(method, orientation):
    [X0], *gradients = normals(6, (20, 16), dtype=torch.float32)
    for [G] in gradients:
        G[3:] = 0  # three rows alone
    [X] = run([X0], gradients, lr=0.1, weight_decay=0.0, orthonormalize=method, orientation=orientation)
    assert X.isfinite().all()
    assert torch.equal(X[3:], X0[3:]), "rows that never had a gradient stay"
    assert (X[:3] - X0[:3]).abs().min() > 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", [(30, 18), (18, 30), (1, 7)])
def test_a_right_oriented_run_is_a_left_oriented_run_of_the_transpose(shape, method):
    [X0], *gradients = normals(8, shape)
    m, n = shape
    common = {"rank_fraction": 0.5, "weight_decay": 0.0, "orthonormalize": method}
    [right] = run([X0], gradients, orientation="right", lr=0.02, **common)
    transposed = [[G.mT.contiguous()] for [G] in gradients]
    [left] = run([X0.mT.contiguous()], transposed, orientation="left", lr=0.02 * m / n, **common)
    assert error(right, left.mT, X0) <= 1e-13


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("method", METHODS)
def test_matrices_do_not_influence_each_other(method, orientation):
    """Seven equal shapes and two others in one optimizer against one optimizer for each, from the same Q."""
    shapes = [(24, 16)] * 7 + [(16, 24), (9, 5)]
    starts, *gradients = normals(6, *shapes)
    options = {"rank_fraction": 0.5, "orthonormalize": method, "orientation": orientation}
    together = [Parameter(X0.clone()) for X0 in starts]
    optimizer = torchdion.Dion(together, **options)
    start(optimizer)
    for index, (X0, X) in enumerate(zip(starts, together, strict=True)):
        alone = torchdion.Dion([Y := Parameter(X0.clone())], **options)
        start(alone)
        factor(alone, Y).copy_(factor(optimizer, X))
        follow(alone, [Y], [[step[index]] for step in gradients])
        starts[index] = Y.detach()
    follow(optimizer, together, gradients)
    for X, expected in zip(together, starts, strict=True):
        assert (X - expected).abs().max() <= 1e-13


def test_every_matrix_starts_from_its_own_Q():
    [starts] = normals(1, *[(12, 8)] * 3)
    optimizer = torchdion.Dion([Parameter(X) for X in starts] + [Parameter(torch.zeros(3, 2, 12, 8))])
    optimizer.param_groups[0]["batch_dims"] = 0
    optimizer.add_param_group({"params": [stack := Parameter(torch.zeros(4, 12, 8))], "batch_dims": 1})
    start(optimizer)
    columns = [state["Q"][..., :, 0].reshape(-1, state["Q"].shape[-2]) for state in optimizer.state.values()]
    first_entries = torch.cat([column[:, 0] for column in columns])
    assert len(first_entries.unique()) == 3 + 1 + 4
    Q = factor(optimizer, stack)
    assert Q.shape == (4, 12, 8)
    assert Q.square().mean().item() == pytest.approx(1 / 12, rel=0.25), "N(0, 1/rows): unit columns on average"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
def test_the_number_of_threads_changes_only_rounding(dtype, bound, method):
    starts, *gradients = normals(3, (150, 70), (150, 70), (70, 150), (1000,), dtype=dtype)
    runs = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        runs.append(run(starts, gradients, rank_fraction=0.3, orthonormalize=method))
    for other in runs[1:]:
        for X, expected, X0 in zip(other, runs[0], starts, strict=True):
            assert error(X, expected, X0) <= bound


def test_torchs_generator_is_not_touched():
    [X0], *gradients = normals(3, (12, 9))
    before = torch.get_rng_state()
    run([X0], gradients, orthonormalize="rcqr", rank_fraction=0.3)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("method", METHODS)
def test_one_seed_gives_one_trajectory_bit_for_bit_and_another_a_different_one(method):
    starts, *gradients = normals(5, (30, 20), (20, 30), (17,), dtype=torch.float32)
    options = {"rank_fraction": 0.3, "orthonormalize": method}
    first, again, other = (run(starts, gradients, seed=seed, **options) for seed in (3, 3, 4))
    assert all(map(torch.equal, first, again))
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[1], other[1])
    assert torch.equal(first[2], other[2]), "a vector has nothing random"


def test_the_seed_draws_the_sketch_which_decides_only_rounding():
    [X0], [G] = normals(2, (40, 30))
    results = []
    for seed in (1, 2):
        optimizer = torchdion.Dion([X := Parameter(X0.clone())], rank_fraction=0.3, orthonormalize="rcqr", seed=seed)
        start(optimizer)
        factor(optimizer, X).copy_(torch.eye(40, 9))
        follow(optimizer, [X], [[G]])
        results.append(X.detach())
    assert 0 < error(results[0], results[1], X0) <= 1e-12


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_a_loaded_Q_keeps_its_orientation_and_its_rank(orientation):
    [X0], *gradients = normals(8, (20, 12))
    source = torchdion.Dion([X := Parameter(X0.clone())], rank_fraction=0.5, orientation=orientation)
    start(source)
    expected = DionState(X0, torch.zeros(20, 12), factor(source, X).clone())
    for [G] in gradients:
        expected = dion(expected, G, 0.01, 0.95, 0.01, orientation)
    other = {"left": "right", "right": "left"}[orientation]
    optimizer = torchdion.Dion([X := Parameter(X0.clone())], rank_fraction=1.0)
    optimizer.load_state_dict(source.state_dict())
    optimizer.param_groups[0]["orientation"] = other
    follow(optimizer, [X], gradients)
    assert error(X, expected.X, X0) <= 1e-12
    assert factor(optimizer, X).shape == expected.Q.shape


def test_gradients_are_only_read():
    [starts, gradients] = normals(2, (20, 12), (12, 20), (9,), dtype=torch.float32)
    gradients[1][2, 3] = float("inf")
    kept = copy.deepcopy(gradients)
    for nonfinite in ("propagate", "zero", "skip_step"):
        params = [Parameter(X0.clone()) for X0 in starts]
        for param, gradient in zip(params, gradients, strict=True):
            param.grad = gradient
        torchdion.Dion(params, nonfinite=nonfinite, maximize=True).step()
        assert all(map(torch.equal, gradients, kept))
