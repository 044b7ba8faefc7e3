"""capturable=True on several ranks: all leave out the same steps, and no rank asks the others after the first."""

from typing import Any

import pytest
import torch
from law import normal
from ranks import run_ranks
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn import Parameter

import torchdion
from torchdion.dtensor import local_part

# Of the first, replicas exchange P and R; of the second, whose rank is full, the momentum; the third is no matrix.
SHAPES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((24, 40), {"rank_fraction": 0.25}),
    ((16, 18), {"rank_fraction": 1.0}),
    ((10,), {}),
]
STEPS, OVERFLOWS = 4, 2


def train(
    rank: int, world_size: int, capturable: bool, orientation: str = "right"
) -> tuple[list[list[Tensor]], dict[str, Any]]:
    """This rank's weights and states after each step; in one of them a single rank has an infinite entry."""
    mesh = init_device_mesh("cpu", (2, world_size // 2), mesh_dim_names=("dp", "fs"))
    params = [
        Parameter(distribute_tensor(normal(shape, torch.float64, i), mesh["fs"], [Shard(0)]))
        for i, (shape, _) in enumerate(SHAPES)
    ]
    optimizer = torchdion.Dion(
        [{"params": [param], **options} for param, (_, options) in zip(params, SHAPES, strict=True)],
        orientation=orientation,
        nonfinite="skip_step",
        capturable=capturable,
        replicate_mesh=mesh["dp"],
    )
    weights = []
    for step in range(STEPS):
        for i, param in enumerate(params):
            gradient = normal(param.shape, torch.float64, i, step, mesh["dp"].get_local_rank())
            param.grad = distribute_tensor(gradient, mesh["fs"], [Shard(0)])
        if step == OVERFLOWS and rank == world_size - 1:
            params[0].grad.to_local()[0, 0] = float("inf")
        optimizer.step()
        states = [value for param in params for value in optimizer.state[param].values()]
        weights.append([local_part(tensor.detach()).clone() for tensor in (*params, *states)])
    return weights, optimizer.stats()


@pytest.mark.parametrize("orientation", ["right", "left"])
def test_every_rank_leaves_out_the_step_in_which_one_overflows(orientation: str) -> None:
    ours, theirs = (run_ranks(train, 4, capturable, orientation) for capturable in (True, False))
    for (weights, stats), (expected, _) in zip(ours, theirs, strict=True):
        assert all(map(torch.equal, weights[OVERFLOWS], weights[OVERFLOWS - 1]))
        assert not any(map(torch.equal, weights[OVERFLOWS], weights[OVERFLOWS + 1]))
        for found, other in zip(weights, expected, strict=True):
            assert all(map(torch.equal, found, other))
        assert stats["skipped_steps"] == 1
    assert [stats["nonfinite_entries"] for _, stats in ours] == [0, 0, 0, 1]


def test_ranks_agree_at_their_first_step_only() -> None:
    """Beside the decision of every step, one number along each axis."""

    def calls(capturable: bool) -> int:
        _, stats = run_ranks(train, 4, capturable)[0]
        return sum(kinds["agreement"]["calls"] for kinds in stats["traffic"].values())

    decisions = 2 * STEPS
    of_the_first_step = calls(True) - decisions
    assert 0 < of_the_first_step < calls(False) - decisions


def replay_and_save(rank: int, world_size: int) -> None:
    """What a graph does to the state of a compressed matrix, which Python does not see."""
    mesh = init_device_mesh("cpu", (world_size,), mesh_dim_names=("dp",))
    param = Parameter(normal((24, 40), torch.float64, 0))
    optimizer = torchdion.Dion([param], rank_fraction=0.25, capturable=True, replicate_mesh=mesh["dp"])
    param.grad = normal((24, 40), torch.float64, 1, rank)
    optimizer.step()
    for replays in range(2):
        optimizer.synchronize_for_checkpoint()
        optimizer.state_dict()
        state = optimizer.state[param]
        state["step"] += 1
        state["momentum"] += rank
        with pytest.raises(RuntimeError, match=r"call synchronize_for_checkpoint\(\) on every rank"):
            optimizer.state_dict()
        mean = state["momentum"] - rank + (world_size - 1) / 2
        optimizer.synchronize_for_checkpoint()
        assert torch.allclose(state["momentum"], mean), replays
        optimizer.check_replicas()


def test_momenta_of_replayed_steps_are_not_saved_before_they_are_synchronized() -> None:
    run_ranks(replay_and_save, 2)


def step_with(rank: int, world_size: int, weight_decays: list[Any]) -> str:
    mesh = init_device_mesh("cpu", (world_size,), mesh_dim_names=("dp",))
    param = Parameter(normal((6, 8), torch.float64, 0))
    param.grad = torch.ones_like(param)
    optimizer = torchdion.Dion([param], weight_decay=weight_decays[rank], replicate_mesh=mesh["dp"])
    try:
        optimizer.step()
    except ValueError as error:
        return str(error)
    return "agreed"


def test_ranks_compare_the_numbers_in_tensors() -> None:
    equal: list[Any] = [torch.tensor(0.5), 0.5]
    assert run_ranks(step_with, 2, equal) == ["agreed"] * 2
    different: list[Any] = [torch.tensor(0.100001), torch.tensor(0.100002)]
    assert all(
        "must agree on the weight_decay of parameter group 0, got 0.1000" in said
        for said in run_ranks(step_with, 2, different)
    )
