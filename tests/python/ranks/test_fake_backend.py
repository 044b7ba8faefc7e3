"""A step in a world of 64 ranks, of which one runs: it sends to the fake backend what the formula says."""

import pytest
from fake_world import fake_world, mesh_of, numbered, placed
from torch.distributed.tensor import Shard
from torch.nn import Parameter

import torchdion


def elements(kinds: dict[str, dict[str, int]]) -> int:
    return sum(kind["elements"] for kind in kinds.values())


@pytest.mark.parametrize("orientation", ["left", "right"])
@pytest.mark.parametrize("rank", [0, 63])
def test_a_rank_of_64_sends_what_the_formula_says(rank: int, orientation: str) -> None:
    with fake_world(rank, 64):
        mesh = mesh_of(dp=4, fs=4, tp=4)
        params = [placed(numbered(90, 70), mesh["fs", "tp"], Shard(0), Shard(1)) for _ in range(5)]
        params += [placed(numbered(70, 90), mesh["fs", "tp"], Shard(0), Shard(0)), Parameter(numbered(11))]
        for param in params:
            param.grad = param.detach().clone()
        options = {"rank_fraction": 0.1, "orientation": orientation, "orthonormalize": "rcqr"}
        optimizer = torchdion.Dion(params, replicate_mesh=mesh["dp"], **options)
        optimizer.step()
        stats = optimizer.stats()
        assert set(stats["expected_traffic"]) == {"dp", "fs", "tp", "fs_tp"}
        assert {name: elements(kinds) for name, kinds in stats["traffic"].items()} == stats["expected_traffic"]
