"""The engine's layouts are those of the DTensors: what a rank holds is what its axes say."""

import copy
import pickle

import pytest
import torch
from fake_world import COLWISE, ROWWISE, fake_world, mesh_of, numbered, placed, wrapped
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.nn import Parameter

import torchdion
from torchdion.dtensor import local_part, local_piece
from torchdion.layout import Layouts
from torchdion.meshes import Meshes
from torchdion.options import DEFAULTS

PARTS = {
    "FSDP2": ({"fs": 4}, {"shards": ("fs",)}, "fs", ""),
    "FSDP2, dim 1": ({"fs": 2}, {"shards": ("fs",), "shard_dim": 1}, "", "fs"),
    "HSDP": ({"rep": 2, "fs": 2}, {"shards": ("rep", "fs")}, "fs", ""),
    "colwise": ({"tp": 3}, {"tensor_parallel": COLWISE}, "tp", ""),
    "rowwise": ({"tp": 3}, {"tensor_parallel": ROWWISE}, "", "tp"),
    "FSDP2 and rowwise": ({"fs": 2, "tp": 3}, {"shards": ("fs",), "tensor_parallel": ROWWISE}, "fs", "tp"),
    "FSDP2, dim 1, and colwise": (
        {"fs": 2, "tp": 3},
        {"shards": ("fs",), "tensor_parallel": COLWISE, "shard_dim": 1},
        "tp",
        "fs",
    ),
    "FSDP2 and colwise": ({"fs": 3, "tp": 2}, {"shards": ("fs",), "tensor_parallel": COLWISE}, "fs_tp", ""),
    "HSDP and colwise": (
        {"rep": 2, "fs": 2, "tp": 2},
        {"shards": ("rep", "fs"), "tensor_parallel": COLWISE},
        "fs_tp",
        "",
    ),
    "HSDP and rowwise": (
        {"rep": 2, "fs": 2, "tp": 2},
        {"shards": ("rep", "fs"), "tensor_parallel": ROWWISE},
        "fs",
        "tp",
    ),
    "meshes of size 1": ({"rep": 1, "fs": 2, "tp": 1}, {"shards": ("rep", "fs"), "tensor_parallel": ROWWISE}, "fs", ""),
}


def read(param: torch.Tensor, meshes: Meshes | None = None, **options: object) -> torchdion._C.Layout:
    return Layouts(meshes or Meshes()).of(param, DEFAULTS | options, "parameter 'weight'").layout


def piece_of(whole: torch.Tensor, layout: torchdion._C.Layout) -> torch.Tensor:
    (row, rows), (col, cols) = layout.rows.piece(whole.shape[0]), layout.cols.piece(whole.shape[1])
    return whole[row : row + rows, col : col + cols]


@pytest.mark.parametrize("shape", [(12, 12), (7, 6), (2, 6)], ids=["even", "uneven", "empty pieces"])
@pytest.mark.parametrize("how", PARTS)
def test_a_rank_holds_the_piece_that_its_layout_says(how, shape):
    sizes, options, rows, cols = PARTS[how]
    world = torch.Size(sizes.values()).numel()
    held = []
    for rank in range(world):
        with fake_world(rank, world):
            param = wrapped(numbered(*shape), mesh_of(**sizes), **options)
            layout = read(param)
            assert (layout.rows.name, layout.cols.name) == (rows, cols)
            assert layout.sizes == list(shape)
            assert layout.batch.absent
            assert layout.replicas.absent
            assert layout.has_averaged_copies == (sizes.get("rep", 1) > 1)
            expected = piece_of(numbered(*shape), layout)
            assert torch.equal(local_piece(param, expected.shape), expected)
            held.append(expected.numel())
    assert sum(held) == sizes.get("rep", 1) * shape[0] * shape[1]
    assert max(held) < shape[0] * shape[1]


@pytest.mark.parametrize(
    ("placements", "expected"),
    [
        ((Shard(0), Shard(0), Shard(1)), ("a_b", "c")),
        ((Shard(1), Shard(0), Shard(1)), ("b", "a_c")),
        ((Shard(0), Shard(0), Shard(0)), ("a_b_c", "")),
        ((_StridedShard(0, split_factor=2), Replicate(), Shard(0)), ("a_c", "")),
        ((_StridedShard(0, split_factor=6), Shard(0), Shard(0)), ("a_b_c", "")),
        ((_StridedShard(0, split_factor=2), _StridedShard(0, split_factor=2), Shard(0)), ("a_b_c", "")),
        ((_StridedShard(0, split_factor=3), Shard(0), Shard(1)), ("a_b", "c")),
        ((_StridedShard(1, split_factor=2), Shard(0), Shard(1)), ("b", "a_c")),
    ],
    ids=str,
)
def test_several_cuts_of_one_side_nest_in_the_order_of_their_placements(placements, expected):
    whole = numbered(24, 12)
    for rank in range(12):
        with fake_world(rank, 12):
            param = placed(whole, mesh_of(a=2, b=3, c=2), *placements)
            layout = read(param)
            assert (layout.rows.name, layout.cols.name) == expected
            assert torch.equal(local_part(param), piece_of(whole, layout))
