"""Runs of the optimizer on matrices alone, with gradients that do not depend on the weights."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

import torchdion


def start(optimizer: torchdion.Dion) -> None:
    """Creates every state: a step with zero gradients and lr = 0 changes nothing else (oracle/test_invariants.py)."""
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
        for param in group["params"]:
            param.grad = torch.zeros_like(param)
    optimizer.step()
    for group, lr in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = lr


def allowance(mu: float) -> float:
    """What bounds on the end of several steps are multiplied by: more at μ = 0.

    There no step resembles the last, and the oracle itself, disturbed by one rounding, ends as far away. How far,
    differs from one processor's LAPACK to another's.
    """
    return 1.0 if mu else 10.0


def follow(optimizer: torchdion.Dion, params: Sequence[Parameter], gradients: Sequence[Sequence[Tensor]]) -> None:
    """One step per entry of `gradients`, which holds one gradient for each parameter."""
    for step in gradients:
        for param, gradient in zip(params, step, strict=True):
            param.grad = gradient.clone(memory_format=torch.preserve_format)
        optimizer.step()


def run(starts: Sequence[Tensor], gradients: Sequence[Sequence[Tensor]], **options: Any) -> list[Tensor]:
    """The weights after those steps from `starts`, in one optimizer."""
    params = [Parameter(tensor.clone(memory_format=torch.preserve_format)) for tensor in starts]
    follow(torchdion.Dion(params, **options), params, gradients)
    return [param.detach() for param in params]


def normals(
    count: int, *shapes: Sequence[int], seed: int = 0, dtype: torch.dtype = torch.float64
) -> list[list[Tensor]]:
    """`count` lists of normal tensors, one of each shape."""
    generator = torch.Generator().manual_seed(seed)

    def normal(shape: Sequence[int]) -> Tensor:
        return torch.randn(tuple(shape), generator=generator, dtype=torch.float64).to(dtype)

    return [[normal(shape) for shape in shapes] for _ in range(count)]


def error(X: Tensor, expected: Tensor, start: Tensor) -> float:
    """How far X is from `expected`, relative to the distance travelled: ‖X − X'‖ / ‖X' − X₀‖. 0 where neither moves."""
    difference = torch.linalg.vector_norm(X.double() - expected.double())
    travelled = torch.linalg.vector_norm(expected.double() - start.double())
    return float((difference / travelled.clamp_min(torch.finfo(torch.float64).tiny)).item())
