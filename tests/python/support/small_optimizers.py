"""Small optimizers of several ranks: parameters cut over the axis 'fs', replicas or copies of some matrices."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn import Parameter

import torchdion
from torchdion.dtensor import local_part

SIZES = {"tall": (12, 6), "wide": (6, 10), "vector": (8,)}


def whole(name: str, salt: int = 0) -> Tensor:
    seed = list(SIZES).index(name) + 100 * salt
    return torch.randn(SIZES[name], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cut(tensor: Tensor, dim: int = 0) -> Tensor:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fs",))
    return distribute_tensor(tensor, mesh, [Shard(dim)], src_data_rank=None)


def cut_parameters(dims: dict[str, int] | None = None) -> list[tuple[str, Parameter]]:
    return [(name, Parameter(cut(whole(name), (dims or {}).get(name, 0)))) for name in SIZES]


def give_gradients(optimizer: torchdion.Dion, salt: int = 1) -> None:
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad = param.detach().mul(salt).sin()


def local_weights(optimizer: torchdion.Dion) -> list[Tensor]:
    return [local_part(param).detach().clone() for param in params_of(optimizer)]


def replicated(sizes: int = 4, dtype: torch.dtype = torch.float64) -> torchdion.Dion:
    generator = torch.Generator().manual_seed(3)
    params = [Parameter(torch.randn(12, 12, generator=generator).to(dtype)) for _ in range(sizes)]
    return torchdion.Dion(params, lr=0.1, rank_fraction=0.25, replicate_mesh=dist.group.WORLD)


def copied(**options: Any) -> torchdion.Muon:
    """Whose gradients are averaged already."""
    generator = torch.Generator().manual_seed(3)
    params = [Parameter(torch.randn(12, 8, generator=generator, dtype=torch.float64)) for _ in range(4)]
    return torchdion.Muon(params, replicate_mesh=dist.group.WORLD, replicate_mesh_grad_sync=False, **options)


def params_of(optimizer: torchdion.Dion) -> list[Tensor]:
    return [param for group in optimizer.param_groups for param in group["params"]]


def give_other_gradients(optimizer: torchdion.Dion, rank: int, dtype: torch.dtype | None = None) -> None:
    for param in params_of(optimizer):
        param.grad = None
        if dtype is not None:
            param.grad_dtype = dtype
        param.grad = param.detach().to(dtype).mul(rank + 1).sin()
