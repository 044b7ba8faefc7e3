"""Entries of others in the states of several ranks, before the first step too, are no matter between ranks."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import Tensor
from torch.nn import Parameter

import torchdion


def steps(rank: int, world_size: int, others: bool, options: dict[str, Any]) -> list[Tensor]:
    """The last rank keeps an entry of its own of what takes its first step, and of what never takes one."""
    params = [Parameter(torch.ones(8, 6)), Parameter(torch.ones(5)), Parameter(torch.ones(4, 4))]
    made_by = torchdion.Muon if options.get("owners") else torchdion.Dion
    optimizer = made_by(
        [{"params": params, **({"owners": "shard"} if options.get("owners") else {})}],
        replicate_mesh=dist.group.WORLD,
        capturable=options.get("capturable", False),
    )
    if others and rank == world_size - 1:
        for param in params:
            optimizer.state[param]["z"] = torch.full((3,), float(rank))
    for step in range(3):
        for param in params[:2]:
            param.grad = torch.arange(param.numel()).reshape(param.shape).sin() * (1 + rank + step)
        if step == 2 and rank == 0:
            params[0].grad = None  # zero, as others have one
        optimizer.step()
    assert "momentum" not in optimizer.state.get(params[2], {})
    optimizer.synchronize_for_checkpoint()
    optimizer.check_replicas()
    optimizer.synchronize_replicas()
    state = optimizer.whole_state_dict()["state"]
    if others and rank == world_size - 1:
        assert all(torch.equal(state[key]["z"], torch.full((3,), float(rank))) for key in range(3))
    optimizer.load_state_dict(optimizer.whole_state_dict())
    assert "step" not in optimizer.state.get(params[2], {})
    return [param.detach() for param in params]


@pytest.mark.parametrize("options", [{}, {"owners": True}, {"capturable": True}], ids=str)
def test_ranks_step_and_save_beside_entries_that_one_of_them_keeps(options: dict[str, Any]) -> None:
    expected, found = (run_ranks(steps, 2, others, options)[0] for others in (False, True))
    assert all(map(torch.equal, found, expected))
