"""A matrix whose gradients have become zero stays finite, and comes to rest."""

import pytest
import torch

import torchdion


@pytest.mark.parametrize("mu", [0.0, 0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
def test_a_matrix_without_gradients_comes_to_rest(dtype: torch.dtype, mu: float) -> None:
    param = torch.nn.Parameter(torch.randn(8, 6, dtype=dtype, generator=torch.Generator().manual_seed(0)))
    optimizer = torchdion.Dion([param], lr=1e-3, mu=mu, weight_decay=0.0)
    param.grad = torch.randn(8, 6, dtype=dtype, generator=torch.Generator().manual_seed(1))
    optimizer.step()
    param.grad.zero_()
    for _ in range(1100):
        before = param.detach().clone()
        optimizer.step()
    assert param.isfinite().all()
    assert torch.equal(param, before)


@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.float64, 1e-306), (torch.float32, 1e-36), (torch.bfloat16, 1e-36), (torch.float16, 1e-4)]
)
def test_lion_without_gradients_comes_to_rest(dtype: torch.dtype, size: float) -> None:
    """Its momentum, 2 % of the gradient at first, passes the least number of its dtype within 100 steps."""
    param = torch.nn.Parameter(torch.zeros(4, dtype=dtype))
    optimizer = torchdion.Dion([param], lr=1e-3, weight_decay=0.0)
    for step in range(150):
        param.grad = torch.full_like(param, size if step == 0 else 0.0)
        before = param.detach().clone()
        optimizer.step()
        assert step > 0 or not torch.equal(param, before)
    assert torch.equal(param, before)
    assert not optimizer.state[param]["momentum"].any()
