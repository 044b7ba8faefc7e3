"""Momenta of exact low rank follow one trajectory on every layout: what is rounding alone counts as signal on none."""

from typing import Any

import pytest
import torch
from long_cases import some_of
from orthonormality import conditioned
from ranks import run_ranks
from runs import error
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn import Parameter

import torchdion

SHAPE = (48, 40)
STEPS = 20
RANKS = (1, 8, 20)  # of the gradients, and so of the momenta
METHODS = ("auto", "rcqr")  # a Householder QR needs whole columns
GROUPS = [
    {"rank_fraction": fraction, "orthonormalize": method, "orientation": orientation}
    for fraction in (1.0, 0.25)
    for method in METHODS
    for orientation in ("right", "left")
]
CUTS = {
    "rows": [Replicate(), Shard(0)],
    "cols": [Replicate(), Shard(1)],
    "both": [Shard(0), Shard(1)],
}
WORLD_SIZES = {"replicas": 2, "rows": 3, "cols": 3, "both": 4}
BOUND = {torch.float64: 1e-9, torch.float32: 1e-3}


def normal(seed: int, *sizes: int) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gradient(rank: int, step: int, replica: int) -> Tensor:
    """Of this rank, with the same column and row space at every step, but for the rounding of its dtype."""
    left, right = (torch.linalg.qr(normal(rank + side, size, rank))[0] for side, size in enumerate(SHAPE))
    return left @ normal(1000 * step + replica, rank, rank) @ right.T


def trained(dtype: torch.dtype, replicas: list[int], place: Any, **options: Any) -> list[Parameter]:
    """After all steps: a parameter for each rank of gradients in each group. The gradients are means over replicas."""
    groups = [{"params": [Parameter(place(normal(7, *SHAPE).to(dtype))) for _ in RANKS], **group} for group in GROUPS]
    optimizer = torchdion.Dion(groups, lr=0.01, weight_decay=0.01, **options)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            for rank, param in zip(RANKS, group["params"], strict=True):
                mean = torch.stack([gradient(rank, step, replica) for replica in replicas]).mean(0)
                param.grad = place(mean.to(dtype))
        optimizer.step()
    assert optimizer.stats()["columns_without_signal"] > 0
    return [param for group in optimizer.param_groups for param in group["params"]]


def on_ranks(rank: int, world_size: int, layout: str, dtype: torch.dtype) -> list[Tensor]:
    if layout == "replicas":
        mesh = init_device_mesh("cpu", (world_size,))
        return [param.detach() for param in trained(dtype, [rank], torch.clone, replicate_mesh=mesh)]
    mesh = init_device_mesh("cpu", {"both": (2, world_size // 2)}.get(layout, (1, world_size)))

    def place(full: Tensor) -> DTensor:
        return distribute_tensor(full, mesh, CUTS[layout], src_data_rank=None)

    return [param.full_tensor().detach() for param in trained(dtype, [0, 1], place)]


@pytest.mark.parametrize("dtype", some_of(BOUND, [torch.float64]))
@pytest.mark.parametrize("layout", some_of(WORLD_SIZES, ["replicas", "both"]))
def test_momenta_of_exact_low_rank_follow_one_trajectory_on_every_layout(layout: str, dtype: torch.dtype) -> None:
    alone = [param.detach() for param in trained(dtype, [0, 1], torch.clone)]
    for weights in run_ranks(on_ranks, WORLD_SIZES[layout], layout, dtype):
        for X, expected in zip(weights, alone, strict=True):
            assert error(X, expected, normal(7, *SHAPE).to(dtype)) <= BOUND[dtype]


def of_rank(rank: int) -> Tensor:
    """Of integers, which products do not round."""
    return normal(1, 40, rank).mul(4).round() @ normal(2, rank, 24).mul(4).round()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("momentum", "dropped", "in_margin"),
    [
        (conditioned(40, 24, 1e4, torch.float64), range(1), range(1)),
        (conditioned(40, 24, 1e8, torch.float64), range(1, 24), range(1, 24)),
        (of_rank(8), range(16, 17), range(1)),
    ],
    ids=["1e4", "1e8", "rank 8"],
)
def test_the_columns_that_a_step_drops_are_counted_by_what_they_are_longer_than(
    momentum: Tensor, dropped: range, in_margin: range, method: str
) -> None:
    X = Parameter(normal(3, 40, 24))
    optimizer = torchdion.Dion([X], orientation="left", orthonormalize=method)
    X.grad = torch.ones_like(X)
    optimizer.step()
    before = optimizer.stats()
    optimizer.state[X]["momentum"].copy_(momentum)
    optimizer.state[X]["Q"].copy_(torch.eye(24))
    X.grad.zero_()
    optimizer.step()
    counts = optimizer.stats()
    assert counts["columns_without_signal"] - before["columns_without_signal"] in dropped
    assert counts["columns_in_margin"] - before["columns_in_margin"] in in_margin
