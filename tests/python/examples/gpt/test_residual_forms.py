"""examples/gpt/studies/residual_forms.py: the library's own forms are its own, and the others what each says."""

import importlib.util
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from oracle import DionState, dion

FILE = Path(__file__).parents[4] / "examples" / "gpt" / "studies" / "residual_forms.py"
PLAIN = {
    "nesterov": True,
    "error_feedback": True,
    "rest_alone": False,
    "sigma": "quarter",
    "rest_weight": 1.0,
    "right_factor": "normalized",
}


@pytest.fixture(scope="module")
def forms() -> ModuleType:
    spec = importlib.util.spec_from_file_location("residual_forms", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def normal(m: int, n: int, seed: int) -> torch.Tensor:
    return torch.randn(m, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("rest", "residual"), [("none", None), ("scaled", "scaled"), ("sign", "sign")])
@pytest.mark.parametrize("right_factor", ["normalized", "orthonormal"])
@pytest.mark.parametrize(("nesterov", "error_feedback"), [(True, True), (False, True), (True, False), (False, False)])
def test_forms_of_the_library_are_its_own(
    rest: str, residual: str | None, right_factor: str, nesterov: bool, error_feedback: bool, forms: ModuleType
) -> None:
    options = {"nesterov": nesterov, "error_feedback": error_feedback, "right_factor": right_factor}
    weight = {"rest_weight": 2.0 if rest == "sign" else 1.0}
    X = torch.nn.Parameter(normal(9, 7, 0))
    optimizer = forms.ResidualDion(
        [X], 1, lr=0.1, mu=0.9, rank_fraction=0.5, weight_decay=0.1, rest=rest, **PLAIN | options | weight
    )
    Q = torch.randn(9, 4, generator=torch.Generator().manual_seed(1)).double()
    expected = DionState(X.detach().clone(), torch.zeros(9, 7, dtype=torch.float64), Q)
    for seed in range(10, 14):
        X.grad = normal(9, 7, seed)
        expected = dion(expected, X.grad, 0.1, 0.9, 0.1, "right", residual=residual, **options)
        optimizer.step()
        torch.testing.assert_close(X.detach(), expected.X, rtol=0, atol=1e-10)


def estimate_of(sigma: str, lengths: list[float], forms: ModuleType) -> float:
    R = torch.diag(torch.tensor(lengths, dtype=torch.float64))
    E, vector = normal(len(lengths), 5, 3), normal(5, 1, 4)[:, 0]
    for _ in range(200):  # steps of the power iteration
        found = float(forms.estimate(R, E, vector, sigma))
    return found


def test_sigma_is_what_each_name_says(forms: ModuleType) -> None:
    lengths = [4.0, 0.0, 1.0, 3.0, 2.0, 9.0]
    expected = {
        "quarter": 1.5,
        "smallest": 1.0,
        "median": 3.0,
        "mean": 3.8,
        "harmonic": 5 / (1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 9),
    }
    for sigma, value in expected.items():
        assert estimate_of(sigma, lengths, forms) == pytest.approx(value), sigma
    norm = float(torch.linalg.matrix_norm(normal(6, 5, 3), 2))
    assert estimate_of("spectral", lengths, forms) == pytest.approx(norm, rel=1e-6)
    assert estimate_of("bounded", lengths, forms) == pytest.approx(max(1.5, norm), rel=1e-6)
    assert estimate_of("quarter", [0.0, 0.0], forms) == 0


@pytest.mark.parametrize("rest", ["sign", "rows", "length", "random", "signs"])
def test_lengths_are_what_each_name_says(rest: str, forms: ModuleType) -> None:
    E, R, vector = normal(6, 5, 3), normal(6, 2, 5), normal(5, 1, 4)[:, 0]
    for _ in range(200):
        found = forms.rest(E, R, vector, rest, "quarter")
    if rest == "signs":
        assert float(torch.linalg.matrix_norm(found, 2)) == pytest.approx(1, rel=1e-6)
    elif rest == "random":
        torch.testing.assert_close(found, E.sign() / (math.sqrt(6) + math.sqrt(5)))
    else:
        assert float(torch.linalg.matrix_norm(found)) == pytest.approx(math.sqrt(5 - 2))
    if rest == "rows":
        lengths = torch.linalg.vector_norm(found, dim=1)
        torch.testing.assert_close(lengths, lengths[:1].expand(6))
    torch.testing.assert_close(found / found.abs(), E.sign())


@pytest.mark.parametrize(("rest", "sigma"), [("scaled", "spectral"), ("sign", "quarter")])
def test_at_rank_0_all_of_the_momentum_is_rest(rest: str, sigma: str, forms: ModuleType) -> None:
    X = torch.nn.Parameter(torch.zeros(6, 6, dtype=torch.float64))
    options: dict[str, Any] = PLAIN | {"nesterov": False, "rest_alone": True, "rest": rest, "sigma": sigma}
    optimizer = forms.ResidualDion([X], 1, lr=1.0, mu=0.9, rank_fraction=0.5, weight_decay=0.0, **options)
    X.grad = normal(6, 6, 2)
    optimizer.step()
    if rest == "sign":
        torch.testing.assert_close(X.detach(), -X.grad.sign() / math.sqrt(6))
    else:
        torch.testing.assert_close(X.detach() / X.detach().norm(), -X.grad / X.grad.norm())


@pytest.mark.parametrize("rest", ["scaled", "sign", "rows", "length", "random", "signs"])
def test_a_momentum_of_zero_moves_nothing(rest: str, forms: ModuleType) -> None:
    X = torch.nn.Parameter(torch.ones(6, 5))
    optimizer = forms.ResidualDion(
        [X], 1, lr=1.0, mu=0.9, rank_fraction=0.5, weight_decay=0.0, rest=rest, **PLAIN | {"sigma": "bounded"}
    )
    X.grad = torch.zeros_like(X)
    optimizer.step()
    assert torch.equal(X.detach(), torch.ones(6, 5))
