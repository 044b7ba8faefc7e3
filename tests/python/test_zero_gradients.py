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
