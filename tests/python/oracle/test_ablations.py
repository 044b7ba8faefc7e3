"""Variants of Dion against the oracle: those of Appendix B of arXiv 2504.05295, cautious decay, Nesterov's momentum."""

from typing import Any

import pytest
import torch
from differential import BOUND, excess
from runs import follow, normals, start
from torch.nn import Parameter
from trajectory import drawn_factors, error_of_state, expected_of

import torchdion

STEPS = 6
ABLATIONS: dict[str, dict[str, Any]] = {
    "no error feedback": {"error_feedback": False},
    "singular vectors": {"factorization": "svd"},
    "neither": {"error_feedback": False, "factorization": "svd"},
    "cautious, left": {"cautious_wd": True, "orientation": "left", "weight_decay": 0.9},
    "singular vectors, left": {"factorization": "svd", "orientation": "left"},
    "nesterov": {"nesterov": True},
    "nesterov, left": {"nesterov": True, "orientation": "left", "mu": 0.3, "maximize": True},
    "nesterov, no error feedback": {"nesterov": True, "error_feedback": False},
    "nesterov, singular vectors": {"nesterov": True, "factorization": "svd"},
    "orthonormal": {"right_factor": "orthonormal"},
    "orthonormal, nesterov, left": {"right_factor": "orthonormal", "nesterov": True, "orientation": "left"},
    "scaled": {"residual": "scaled"},
    "scaled, nesterov": {"residual": "scaled", "nesterov": True},
    "scaled, nesterov, left": {"residual": "scaled", "nesterov": True, "orientation": "left", "maximize": True},
    "scaled, no error feedback": {"residual": "scaled", "error_feedback": False, "nesterov": True},
    "scaled, cautious": {"residual": "scaled", "cautious_wd": True, "weight_decay": 0.9},
    "scaled, orthonormal": {"residual": "scaled", "right_factor": "orthonormal", "nesterov": True},
    "scaled, singular vectors": {"residual": "scaled", "factorization": "svd"},
    "signs": {"residual": "sign"},
    "signs, nesterov": {"residual": "sign", "nesterov": True},
    "signs, nesterov, left": {"residual": "sign", "nesterov": True, "orientation": "left", "maximize": True},
    "signs, no error feedback": {"residual": "sign", "error_feedback": False},
    "signs, no error feedback, nesterov": {"residual": "sign", "error_feedback": False, "nesterov": True},
    "signs, cautious": {"residual": "sign", "cautious_wd": True, "weight_decay": 0.9},
    "signs, orthonormal": {"residual": "sign", "right_factor": "orthonormal", "nesterov": True},
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["fp64", "fp32"])
@pytest.mark.parametrize("shape", [(24, 10), (10, 24), (3, 8, 6)], ids=str)
@pytest.mark.parametrize("options", ABLATIONS.values(), ids=ABLATIONS)
def test_an_ablation_is_what_the_paper_says(
    options: dict[str, Any], shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    [begin], *gradients = normals(STEPS + 1, shape, dtype=dtype)
    X = Parameter(begin.clone())
    group = {"params": [X], "batch_dims": len(shape) - 2}
    given = {"lr": 0.02, "rank_fraction": 0.3, "weight_decay": 0.1, "precision": "highest"}
    optimizer = torchdion.Dion([group], **given | options)
    start(optimizer)
    expected = expected_of(
        begin, drawn_factors(optimizer.state[X]), [G for [G] in gradients], optimizer.param_groups[0]
    )
    assert expected.condition <= 1e4
    follow(optimizer, [X], gradients)
    assert excess(X.detach(), expected.X, begin, sum(expected.paths), STEPS) <= 1
    for name, shape_of in (("momentum", "like_parameter"), ("Q", "factor")):
        assert error_of_state(shape_of, optimizer.state[X][name], expected.states[name]) <= 10 * BOUND[dtype], name


@pytest.mark.parametrize("factorization", ["power_iteration", "svd"])
def test_a_matrix_without_gradient_and_momentum_stays_but_for_its_decay(factorization: str) -> None:
    X = Parameter(torch.randn(12, 8))
    before = X.detach().clone()
    optimizer = torchdion.Dion([X], lr=0.1, weight_decay=0.5, rank_fraction=0.5, factorization=factorization)
    X.grad = torch.zeros_like(X)
    optimizer.step()
    assert torch.equal(X.detach(), before * (1 - 0.1 * 0.5))
    assert not optimizer.state[X]["momentum"].any()


def test_of_a_gradient_of_low_rank_no_more_singular_vectors_move_the_weights_than_it_has() -> None:
    X = Parameter(torch.zeros(12, 8, dtype=torch.float64))
    optimizer = torchdion.Dion([X], lr=1.0, weight_decay=0.0, factorization="svd")
    left, right = torch.randn(12, 3, dtype=torch.float64), torch.randn(8, 3, dtype=torch.float64)
    X.grad = left @ right.mT
    optimizer.step()
    values = torch.linalg.svdvals(X.detach()) / (12 / 8) ** 0.5
    assert (values - torch.tensor([1.0] * 3 + [0.0] * 5)).abs().max() <= 1e-12


def test_decay_is_left_out_where_the_update_has_the_other_sign() -> None:
    X = Parameter(torch.tensor([1.0, -1.0, 1.0, -1.0]))
    optimizer = torchdion.Lion([X], lr=0.25, weight_decay=1.0, cautious_wd=True)
    X.grad = torch.tensor([1.0, 1.0, -1.0, -1.0])
    optimizer.step()
    assert X.tolist() == [0.75 - 0.25, -1.25, 1.25, -0.75 + 0.25]


def trained(options: dict[str, Any], shape: tuple[int, int]) -> torch.Tensor:
    [begin], *gradients = normals(STEPS + 1, shape)
    X = Parameter(begin.clone())
    follow(torchdion.Dion([X], lr=0.02, **options), [X], gradients)
    return X.detach() - begin


@pytest.mark.parametrize("rank_fraction", [1.0, 0.3])
def test_without_momentum_nesterov_is_dion_to_the_last_bit(rank_fraction: float) -> None:
    options = {"mu": 0.0, "rank_fraction": rank_fraction}
    assert torch.equal(trained({"nesterov": True, **options}, (24, 10)), trained(options, (24, 10)))


@pytest.mark.parametrize("error_feedback", [True, False])
def test_at_full_rank_what_nesterov_factors_is_what_muon_orthonormalizes(error_feedback: bool) -> None:
    """With V of Muon's, Dion's M is μ²V, so that M + (1 + μ)G of the next gradient is G + μV; or it is V."""
    mu, lr = 0.9, 0.02
    [begin], *gradients = normals(STEPS + 1, (8, 8))
    X, V = Parameter(begin.clone()), torch.zeros_like(begin)
    options = {"error_feedback": error_feedback, "factorization": "svd", "weight_decay": 0.0}
    optimizer = torchdion.Dion([X], lr=lr, mu=mu, nesterov=True, **options)
    for [G] in gradients:
        before = X.detach().clone()
        X.grad = G.clone()
        optimizer.step()
        V = mu * V + G
        U, _, Vh = torch.linalg.svd(G + mu * V)
        assert ((before - X.detach()) / lr - U @ Vh).norm() <= 1e-10
        M = mu**2 * V if error_feedback else V
        assert (optimizer.state[X]["momentum"] - M).norm() <= 1e-12 * M.norm()
