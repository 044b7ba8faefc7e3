"""The models of the tests of torchdion.plan, plain and as FSDP2 and tensor parallelism distribute them."""

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

STYLES = {"query": "colwise", "up": "colwise", "down": "rowwise"}


def block_model(blocks: int = 3, d: int = 64, mlp: int = 160, device: str = "meta") -> nn.Module:
    """A matrix of every role: rows and columns cut by tp, whole on tp; with biases, a norm, an embedding and a head."""
    with torch.device(device):
        model = nn.Module()
        model.embedding = nn.Embedding(96, d)
        model.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "query": nn.Linear(d, d),
                    "router": nn.Linear(d, 24, bias=False),
                    "up": nn.Linear(d, mlp),
                    "down": nn.Linear(mlp, d),
                    "norm": nn.LayerNorm(d),
                }
            )
            for _ in range(blocks)
        )
        model.head = nn.Linear(d, 96, bias=False)
    return model


def distribute(model: nn.Module, mesh: DeviceMesh, fs_cuts: str) -> nn.Module:
    """As a user does: tensor parallelism where the mesh has it, then FSDP2."""
    if "tp" in mesh.mesh_dim_names:
        styles = {"colwise": ColwiseParallel(), "rowwise": RowwiseParallel()}
        for block in model.blocks:
            parallelize_module(
                block, mesh["tp"], {name: styles[style] for name, style in STYLES.items()}, src_data_rank=None
            )
        ends = {"embedding": RowwiseParallel(), "head": ColwiseParallel()}
        parallelize_module(model, mesh["tp"], ends, src_data_rank=None)

    def placement(param: nn.Parameter) -> Shard:
        cut_by_tp = isinstance(param, DTensor) and param.placements[0] == Shard(0)
        return Shard(1 if fs_cuts == "other" and cut_by_tp and param.dim() > 1 else 0)

    if "fs" in mesh.mesh_dim_names:
        fully_shard(model, mesh=mesh["fs"], shard_placement_fn=placement)
    return model
