"""examples/gpt/studies/nesterov_forms.py: every form begins as Dion, and goes on as its definition says."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
from oracle import DionState, dion

FILE = Path(__file__).parents[4] / "examples" / "gpt" / "studies" / "nesterov_forms.py"


@pytest.fixture(scope="module")
def forms() -> ModuleType:
    spec = importlib.util.spec_from_file_location("nesterov_forms", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def weight(m: int, n: int, seed: int) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.randn(m, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))


@pytest.mark.parametrize("form", "abc")
def test_the_first_step_of_a_form_is_dions(form: str, forms: ModuleType) -> None:
    X, G = weight(6, 4, 0), weight(6, 4, 10).detach()
    optimizer = forms.NesterovDion([X], form, 1, lr=0.1, mu=0.9, rank_fraction=0.5, weight_decay=0.1)
    Q = torch.randn(6, 2, generator=torch.Generator().manual_seed(1)).double()
    state = DionState(X.detach().clone(), torch.zeros(6, 4, dtype=torch.float64), Q)
    X.grad = G.clone()
    optimizer.step()
    expected = dion(state, G, 0.1, 0.9, 0.1, "right")
    torch.testing.assert_close(X.detach(), expected.X, rtol=0, atol=1e-12)
    torch.testing.assert_close(optimizer.state[X]["Q"], expected.Q, rtol=0, atol=1e-12)


def test_the_forms_keep_what_each_says(forms: ModuleType) -> None:
    G, H = weight(6, 4, 5).detach(), weight(6, 4, 6).detach()
    momenta = {}
    for form in "abc":
        X = weight(6, 4, 0)
        optimizer = forms.NesterovDion([X], form, 1, lr=0.1, mu=0.9, rank_fraction=0.5, weight_decay=0.0)
        for gradient in (G, H):
            X.grad = gradient.clone()
            M = optimizer.state[X]["momentum"].clone() if optimizer.state[X] else torch.zeros_like(G)
            Q = optimizer.state[X]["Q"].clone() if optimizer.state[X] else None
            optimizer.step()
        assert Q is not None
        B = M + H
        L = 0.9 * B + H
        P, _ = torch.linalg.qr(L.mT @ Q)
        R, V = (L if form == "c" else B) @ P, L @ P
        expected_Q = (R if form == "a" else V) / (R if form == "a" else V).norm(dim=0)
        torch.testing.assert_close(optimizer.state[X]["momentum"], B - 0.1 * R @ P.mT, rtol=0, atol=1e-12)
        torch.testing.assert_close(optimizer.state[X]["Q"], expected_Q, rtol=0, atol=1e-12)
        momenta[form] = optimizer.state[X]["momentum"]
    assert not torch.allclose(momenta["a"], momenta["c"])
