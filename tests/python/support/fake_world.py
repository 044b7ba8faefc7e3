"""Worlds of any size in one process: groups whose collectives do nothing, as one of their ranks sees them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextmanager
def fake_world(rank: int, size: int) -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()
        clear_specs()


def clear_specs() -> None:
    """An equal mesh of the next world would get the specs of this one's, whose groups are gone."""
    DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache_clear()
    torch._C._clear_DTensor_sharding_propagator_cache()


def numbered(*shape: int) -> Tensor:
    """Every entry is its own index, which tells where a piece comes from."""
    return torch.arange(float(torch.Size(shape).numel())).view(shape)


def mesh_of(**sizes: int) -> DeviceMesh:
    return init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def wrapped(
    weight: Tensor,
    mesh: DeviceMesh,
    shards: tuple[str, ...] = (),
    tensor_parallel: type | None = None,
    shard_dim: int = 0,
) -> nn.Parameter:
    """The weight of a Linear under tensor parallelism on the mesh dimension "tp", then FSDP2 on those named."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight = nn.Parameter(weight)
    model = nn.Sequential(layer)
    if tensor_parallel is not None:
        parallelize_module(model, mesh["tp"], {"0": tensor_parallel()}, src_data_rank=None)
    if shards:
        fully_shard(model, mesh=mesh[shards], shard_placement_fn=lambda _: Shard(shard_dim))
    return model[0].weight


def placed(tensor: Tensor, mesh: DeviceMesh, *placements: object) -> nn.Parameter:
    return nn.Parameter(distribute_tensor(tensor, mesh, placements, src_data_rank=None))


COLWISE, ROWWISE = ColwiseParallel, RowwiseParallel
