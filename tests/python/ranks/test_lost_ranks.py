"""Ranks that die, raise in the middle of a step or do not come: an error on the others, that says where they were."""

import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import RankDied, run_ranks
from small_optimizers import SIZES, cut_parameters, give_gradients, whole
from torch.nn import Parameter

import torchdion


def after_a_death(rank: int, world_size: int, folder: Path) -> None:
    """What the others say of it."""
    optimizer = torchdion.Dion(cut_parameters(), lr=0.1)
    give_gradients(optimizer)
    optimizer.step()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(RuntimeError) as caught:
        optimizer.step()
    optimizer.state_dict()  # nothing was written
    (folder / str(rank)).write_text(str(caught.value))


def test_a_rank_that_dies_is_noticed_by_the_others(tmp_path: Path) -> None:
    with pytest.raises(RankDied, match="rank 1 died of SIGKILL"):
        run_ranks(after_a_death, 3, tmp_path, time_limit=30)
    for rank in (0, 2):
        sentence = (tmp_path / str(rank)).read_text()
        assert sentence.startswith("torchdion: the all_reduce over the axis 'fs' of 3 ranks failed: "), sentence


class Dying(torch.utils._python_dispatch.TorchDispatchMode):
    """Raises at the collective of this number."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.remaining = number

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.remaining -= 1
            if self.remaining < 0:
                raise MemoryError("no room")
        return func(*args, **(kwargs or {}))


def in_the_middle(rank: int, world_size: int, folder: Path) -> None:
    """Rank 1 raises in the middle of a step and leaves; the others say where they were."""
    optimizer = torchdion.Dion(cut_parameters(), lr=0.1)
    give_gradients(optimizer)
    optimizer.step()
    saved = optimizer.state_dict()
    if rank == 1:
        with pytest.raises(RuntimeError, match="of 3 ranks failed: "), Dying(3):
            optimizer.step()
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(RuntimeError) as caught:
        optimizer.step()
    sentence = str(caught.value)
    assert "over the axis 'fs' of 3 ranks failed: " in sentence
    assert "(in batch " in sentence
    assert " under " in sentence
    with pytest.raises(RuntimeError, match=r"the last step failed after [01] of 3 batches; load a checkpoint"):
        optimizer.state_dict()
    optimizer.load_state_dict(saved)
    optimizer.state_dict()
    (folder / str(rank)).touch()


def test_the_error_of_a_collective_names_axis_and_batch(tmp_path: Path) -> None:
    with pytest.raises(RankDied, match="rank 1 died of SIGKILL"):
        run_ranks(in_the_middle, 3, tmp_path, time_limit=30)
    assert {path.name for path in tmp_path.iterdir()} == {"0", "2"}


def one_does_not_come(rank: int, world_size: int) -> None:
    group = dist.new_group(timeout=timedelta(seconds=2))
    params = [(name, Parameter(whole(name))) for name in SIZES]
    optimizer = torchdion.Dion(params, rank_fraction=0.25, replicate_mesh=group)
    give_gradients(optimizer)
    optimizer.step()
    if rank == 0:
        with pytest.raises(
            RuntimeError, match=r"^torchdion: the all_reduce over the axis 'replicas' of 2 ranks failed"
        ):
            optimizer.step()
    dist.barrier()  # where the other one waits meanwhile


def test_a_rank_that_does_not_come_is_waited_for_no_longer_than_the_time_limit_of_the_group() -> None:
    run_ranks(one_does_not_come, 2, time_limit=30)
