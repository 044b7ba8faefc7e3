"""What the tests on a GPU share: numbers that are the same on every device, and an optimizer of every role."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchdion
from torchdion import _C

HAS_GPU = torch.cuda.is_available() and _C.has_kernels_for("cuda")
needs_gpu = pytest.mark.skipif(not HAS_GPU, reason="needs a GPU and a build with nvcc")


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def distance(actual: Tensor, expected: Tensor) -> float:
    """Relative, in FP64."""
    exact = expected.double().cpu()
    return float((actual.double().cpu() - exact).norm() / exact.norm())


SHAPES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "tall": ((96, 40), {}),
    "wide": ((40, 96), {}),
    "stack": ((3, 24, 31), {"batch_dims": 1}),
    "fused": ((90, 32), {"blocks": 3}),
    "convolution": ((16, 6, 3, 3), {}),
    "vector": ((57,), {}),
    "embedding": ((50, 20), {"algorithm": "lion"}),
    "head": ((20, 50), {"algorithm": "adamw"}),
}


def give_gradients(optimizer: torchdion.Dion, step: int) -> None:
    """Random ones, the same on every device, always in the same memory."""
    for index, group in enumerate(optimizer.param_groups):
        [param] = group["params"]
        if param.grad is None:
            param.grad = torch.empty_like(param)
        param.grad.copy_(normal(*param.shape, seed=100 * step + index))


def trained(
    device: str, dtype: torch.dtype, steps: int, make: type[Any] = torchdion.Dion, **options: Any
) -> tuple[dict[str, Tensor], Any]:
    """The weights after so many steps on random gradients."""
    params = {name: normal(*shape, seed=i).to(device, dtype) for i, (name, (shape, _)) in enumerate(SHAPES.items())}
    groups = [{"params": [(name, nn.Parameter(params[name]))], **SHAPES[name][1]} for name in SHAPES]
    of_dion = {"rank_fraction": 0.4} if make is torchdion.Dion else {}
    optimizer = make(groups, **{"lr": 0.05, **of_dion, **options})
    for step in range(steps):
        give_gradients(optimizer, step)
        optimizer.step()
    weights = {name: group["params"][0].detach() for name, group in zip(SHAPES, optimizer.param_groups, strict=True)}
    return weights, optimizer


@contextmanager
def sync_is_an_error() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
