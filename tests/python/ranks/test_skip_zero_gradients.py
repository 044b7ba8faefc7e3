"""skip_zero_gradients: matrices without any gradient stay as they are, to the last bit, on every layout."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from runs import error
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn import Parameter

import torchdion
from torchdion.dtensor import local_part

WITHOUT_TOKENS = 1  # the expert that has none after the first step


def start(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(3, 12, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def gradient(step: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(10 * step + rank + 2)
    G = torch.randn(3, 12, 8, generator=generator, dtype=torch.float64)
    if step > 0:
        G[WITHOUT_TOKENS] = 0
        if rank == 0:
            G[2] = 0  # others have some
    return G


def stack(param: Parameter, **options: Any) -> torchdion.Dion:
    options = {"weight_decay": 0.1, "lr": 0.1, "rank_fraction": 0.25, **options}
    return torchdion.Dion([{"params": [param], "batch_dims": 1, "skip_zero_gradients": True}], **options)


def kept(optimizer: torchdion.Dion, param: Parameter) -> list[Tensor]:
    state = optimizer.state[param]
    return [local_part(tensor)[WITHOUT_TOKENS].clone() for tensor in (param.detach(), state["momentum"], state["Q"])]


OPTIONS: list[dict[str, Any]] = [
    {},
    {"orientation": "left", "orthonormalize": "rcqr"},
    {"capturable": True, "nonfinite": "skip_step", "lr": torch.tensor(0.1), "weight_decay": torch.tensor(0.1)},
    {"nonfinite": "zero", "maximize": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_matrix_without_a_gradient_keeps_weight_momentum_and_Q_and_the_others_go_on(
    options: dict[str, Any], dtype: torch.dtype
) -> None:
    """The others as where no matrix is skipped."""
    param, other = (Parameter(start(dtype)) for _ in range(2))
    optimizer, paper = stack(param, **options), stack(other, **options)
    paper.param_groups[0]["skip_zero_gradients"] = False
    for step in range(4):
        for each in (param, other):
            each.grad = gradient(step, 1).to(dtype)
        before = kept(optimizer, param) if step else []
        optimizer.step()
        paper.step()
        if step:
            assert all(map(torch.equal, kept(optimizer, param), before))
    assert not torch.equal(other[WITHOUT_TOKENS], param[WITHOUT_TOKENS])
    tolerance = 1e-12 if dtype == torch.float64 and not isinstance(options.get("lr"), Tensor) else 0.02
    for expert in (0, 2):
        assert error(param[expert].double(), other[expert].double(), start(dtype)[expert].double()) <= tolerance


def test_a_matrix_and_the_blocks_of_one_are_skipped_too() -> None:
    plain, fused = Parameter(start()[0].clone()), Parameter(start()[1].clone())
    groups = [{"params": [plain]}, {"params": [fused], "blocks": 3}]
    optimizer = torchdion.Dion([{**group, "skip_zero_gradients": True} for group in groups], lr=0.1)
    plain.grad, fused.grad = torch.ones_like(plain), torch.ones_like(fused)
    optimizer.step()
    before = [plain.detach().clone(), fused.detach().clone()]
    plain.grad.zero_()
    fused.grad[4:8] = 0
    optimizer.step()
    assert torch.equal(plain, before[0])
    assert [torch.equal(*rows) for rows in zip(fused.split(4), before[1].split(4), strict=True)] == [False, True, False]


def on_ranks(rank: int, world_size: int, layout: str, fraction: float) -> Tensor:
    if layout == "replicas":
        param = Parameter(start())
        optimizer = stack(param, replicate_mesh=dist.group.WORLD, rank_fraction=fraction)
    else:
        mesh = init_device_mesh("cpu", (world_size,), mesh_dim_names=("fs",))
        param = Parameter(distribute_tensor(start(), mesh, [Shard({"rows": 1, "cols": 2}[layout])], src_data_rank=None))
        optimizer = stack(param, rank_fraction=fraction)
    for step in range(4):
        if layout == "replicas":
            param.grad = gradient(step, rank)
        else:
            mean = torch.stack([gradient(step, other) for other in range(world_size)]).mean(0)
            param.grad = distribute_tensor(mean, mesh, param.placements, src_data_rank=None)
        before = kept(optimizer, param) if step else []
        optimizer.step()
        if step:
            assert all(map(torch.equal, kept(optimizer, param), before))
    if layout == "replicas":
        optimizer.check_replicas()
        return param.detach()
    return param.full_tensor().detach()


@pytest.mark.parametrize(
    ("layout", "fraction"), [("replicas", 0.25), ("replicas", 1.0), ("rows", 0.25), ("cols", 0.25)]
)
def test_ranks_skip_what_has_no_gradient_on_any_of_them(layout: str, fraction: float) -> None:
    """Three ranks: a third of thrice a momentum need not be the momentum."""
    alone = Parameter(start())
    optimizer = stack(alone, rank_fraction=fraction)
    for step in range(4):
        alone.grad = torch.stack([gradient(step, rank) for rank in range(3)]).mean(0)
        optimizer.step()
    for weights in run_ranks(on_ranks, 3, layout, fraction, time_limit=60):
        assert error(weights, alone.detach(), start()) <= 1e-9


def left_out_on_ranks(rank: int, world_size: int) -> None:
    param = Parameter(start())
    options: dict[str, Any] = {"replicate_mesh": dist.group.WORLD, "rank_fraction": 1.0}
    optimizer = stack(param, nonfinite="skip_step", capturable=True, **options)
    param.grad = gradient(0, rank)
    optimizer.step()
    before = [param.detach().clone(), *(value.clone() for value in optimizer.state[param].values())]
    param.grad = gradient(1, rank)
    if rank == 1:
        param.grad[0, 2, 3] = torch.nan
    optimizer.step()
    assert all(map(torch.equal, (param.detach(), *optimizer.state[param].values()), before))
    assert optimizer.stats()["skipped_steps"] == 1


def test_a_step_that_is_left_out_on_the_devices_changes_no_matrix_with_a_gradient_either() -> None:
    """Three ranks: a third of thrice a momentum need not be the momentum."""
    run_ranks(left_out_on_ranks, 3, time_limit=60)
