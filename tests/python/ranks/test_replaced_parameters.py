"""Accelerate shards a model with FSDP2 after its optimizer was made, and puts the new parameters into its groups."""

import copy

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.utils import DistributedType
from ranks import run_ranks
from torch import nn
from torch.distributed.tensor import DTensor, Shard

import torchdion


def accelerator() -> Accelerator:
    """Accelerate takes its FSDP for accelerators alone; its code runs on CPUs too."""
    accelerator = Accelerator(cpu=True)
    accelerator.state.distributed_type = DistributedType.FSDP
    accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(fsdp_version=2, cpu_ram_efficient_loading=False)
    return accelerator


def prepared_and_stepped(rank: int, world_size: int) -> tuple[list[int], float]:
    model, x = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 5)), torch.randn(4, 6)
    alone = copy.deepcopy(model)
    options = {"rank_fraction": 0.5, "lr": 0.1}
    reference = torchdion.Dion(alone.named_parameters(), **options)
    optimizer = torchdion.Dion(model.named_parameters(), **options)
    accelerate = accelerator()
    model, prepared = accelerate.prepare(model, optimizer)
    for _ in range(2):
        accelerate.backward(model(x).square().sum())
        alone(x).square().sum().backward()
        for ours in (prepared, reference):
            ours.step()
            ours.zero_grad()
    errors = [
        (ours.full_tensor() - theirs).abs().max().item()
        for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True)
    ]
    params = optimizer.param_groups[0]["params"]
    assert all(isinstance(param, DTensor) and param.placements == (Shard(0),) for param in params)
    assert [optimizer.state[param]["Q"].placements for param in params if param.dim() == 2] == [(Shard(0),)] * 2
    layouts = [optimizer._layouts.of(param, optimizer.param_groups[0], "weight").layout for param in params]
    return [layout.rows.size for layout in layouts], max(errors)


def test_parameters_that_Accelerate_swaps_after_construction_are_updated_by_their_pieces():
    for sizes, error in run_ranks(prepared_and_stepped, 2):
        assert sizes == [2, 2, 2, 2]
        assert error < 1e-5
