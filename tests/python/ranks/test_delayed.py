"""What a delayed step leaves in flight: who waits for it, when a process ends, and when a rank is lost."""

import copy
import gc
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import RankDied, run_ranks
from torch import Tensor
from torch.nn import Parameter
from trainings import Layout, Training

import torchdion

REPLICAS = Layout("compressed", (2,), ("dp",))
DELAYED = "delayed double_dion"

WAITS: dict[str, Callable[[Any], object]] = {
    "state_dict": lambda optimizer: optimizer.state_dict(),
    "whole_state_dict": lambda optimizer: optimizer.whole_state_dict(),
    "synchronize_for_checkpoint": lambda optimizer: optimizer.synchronize_for_checkpoint(),
    "check_replicas": lambda optimizer: optimizer.check_replicas(),
    "synchronize_replicas": lambda optimizer: optimizer.synchronize_replicas(),
    "resize_rank": lambda optimizer: optimizer.resize_rank(),
    "stats": lambda optimizer: optimizer.stats(),
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
}


def what_waits(rank: int, world_size: int) -> dict[str, bool]:
    """For each method, whether the momentum is what the step leaves when it has returned."""
    ended = Training(REPLICAS, algorithm=DELAYED)
    ended.run(0, 3)
    ended.optimizer.stats()
    found = {}
    for name, wait in WAITS.items():
        training = Training(REPLICAS, algorithm=DELAYED)
        training.run(0, 3)
        assert training.optimizer._core.has_in_flight
        try:
            wait(training.optimizer)
        except RuntimeError as error:
            assert name == "state_dict" and "synchronize_for_checkpoint" in str(error), name
        found[name] = not training.optimizer._core.has_in_flight and all(
            torch.equal(training.optimizer.state[own]["momentum"], ended.optimizer.state[other]["momentum"])
            for own, other in zip(training.model.parameters(), ended.model.parameters(), strict=True)
        )
    return found


def test_all_that_looks_at_states_waits() -> None:
    for found in run_ranks(what_waits, 2):
        assert found == dict.fromkeys(WAITS, True)


def loads_its_own(rank: int, world_size: int) -> None:
    """A state dict holds the optimizer's own tensors, to which what is in flight goes."""
    momenta = []
    for waits in (True, False):
        training = Training(REPLICAS, algorithm=DELAYED)
        training.run(0, 2)
        training.optimizer.synchronize_for_checkpoint()
        saved = training.optimizer.state_dict()
        training.run(2, 3)
        if waits:
            training.optimizer.stats()
        training.optimizer.load_state_dict(saved)
        states = (training.optimizer.state[param] for param in training.model.parameters())
        momenta.append([state["momentum"].clone() for state in states])
    assert all(map(torch.equal, *momenta))


def test_loading_waits_for_what_it_may_read() -> None:
    run_ranks(loads_its_own, 2)


def test_a_forked_process_is_told_that_it_has_no_thread() -> None:
    training = Training(Layout("one"), algorithm=DELAYED)
    training.run(0, 2)
    child = os.fork()
    if child == 0:
        try:
            training.optimizer.state_dict()
        except RuntimeError as error:
            os._exit(0 if "belongs to the process that took it" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    training.optimizer.state_dict()


def among_other_groups(rank: int, world_size: int) -> int:
    """Ranks 1 and 2 are replicas; rank 1 has made a group that rank 2 knows nothing of."""
    if rank < 2:
        dist.new_group([0, 1], use_local_synchronization=True)
    if rank == 0:
        return 0
    replicas = dist.new_group([1, 2], use_local_synchronization=True) if rank == 1 else None
    if rank == 2:
        dist.distributed_c10d._world.group_count += 1  # as many as rank 1: what the user's own groups need
        replicas = dist.new_group([1, 2], use_local_synchronization=True)
        dist.distributed_c10d._world.group_count += 5
    X = Parameter(torch.zeros(20, 30))
    optimizer = torchdion.DoubleDion([X], lr=0.1, delayed=True, replicate_mesh=replicas)
    for _ in range(2):
        X.grad = torch.randn(20, 30)
        optimizer.step()
    steps: int = optimizer.stats()["steps"]
    return steps


def test_second_groups_are_made_whatever_else_ranks_have_made() -> None:
    assert run_ranks(among_other_groups, 3, time_limit=30) == [0, 2, 2]


def descriptors(rank: int, world_size: int) -> list[int]:
    """Open ones after each of some optimizers that are gone soon, on rank 0 one later than on the others."""
    open_now, kept = [], []
    for _ in range(6):
        training = Training(REPLICAS, algorithm=DELAYED)
        training.run(0, 2)
        training.optimizer.stats()
        kept = [training] if rank == 0 else []
        del training
        gc.collect()
        open_now.append(len(os.listdir("/proc/self/fd")))
    assert len(kept) == (rank == 0)
    return open_now


def test_second_groups_go_to_later_optimizers() -> None:
    for open_now in run_ranks(descriptors, 2):
        assert open_now[1:] == [open_now[-1]] * 5, open_now


def two_at_once(rank: int, world_size: int) -> list[Tensor]:
    """Two optimizers have something in flight, over groups of their own, when both have had one that is gone."""
    for _ in range(2):
        trainings = [Training(REPLICAS, algorithm=DELAYED) for _ in range(2)]
        for step in range(3):
            for training in trainings:
                training.run(step, step + 1)
        for training in trainings:
            training.optimizer.synchronize_for_checkpoint()
        weights = [training.weights() for training in trainings]
        for one, other in zip(*weights, strict=True):
            assert torch.equal(one, other)
        del training, trainings
        gc.collect()
    return weights[0]


def test_optimizers_have_groups_of_their_own() -> None:
    first, second = run_ranks(two_at_once, 2)
    assert all(map(torch.equal, first, second))


def counters(rank: int, world_size: int) -> dict[str, Any]:
    training = Training(REPLICAS, algorithm=DELAYED)
    training.run(0, 4)
    stats = training.optimizer.stats()
    sent = sum(kind["elements"] for kind in stats["traffic"]["dp"].values())
    assert sent == 4 * stats["expected_traffic"]["dp"]
    plain = Training(REPLICAS, algorithm="double_dion")
    plain.run(0, 4)
    assert plain.optimizer.stats()["traffic"] == stats["traffic"]
    return stats


def test_what_is_in_flight_is_counted_when_it_has_ended() -> None:
    run_ranks(counters, 2)


def test_the_option_may_change_between_steps() -> None:
    """The momentum has what was exchanged, whether a stage has seen it or not: none of it is lost or counted twice."""
    G = torch.randn(20, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    momenta = []
    for delayed in ([False, False], [True, False], [False, True], [True, True]):
        X = Parameter(torch.zeros(20, 30, dtype=torch.float64))
        options = {"mu": 0.999999999999, "replicate_rank_fraction": 1.0, "replicate_mu": 0.0, "weight_decay": 0.0}
        optimizer = torchdion.DoubleDion([X], lr=0.1, **options)
        for setting in delayed:
            optimizer.param_groups[0]["delayed"] = setting
            X.grad = G.clone()
            optimizer.step()
        optimizer.stats()
        momenta.append(optimizer.state[X]["momentum"])
    for momentum in momenta:  # of full rank, nothing stays in M₁, and M₂ forgets nothing
        assert torch.allclose(momentum, 2 * G, rtol=1e-9, atol=1e-9)


def test_a_graph_cannot_have_it() -> None:
    X = Parameter(torch.zeros(4, 4))
    with pytest.raises(ValueError, match=r"delayed=True .*capturable=True"):
        torchdion.DoubleDion([X], delayed=True, capturable=True)


# The last step of rank 1 begins to write when rank 0 has ended, or would have.
ENDING = """
import ctypes, sys, time
import torch, torch.distributed as dist
import torchdion
rank, store, destroys = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "destroys"
torch.set_num_threads(1)
dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
params = [torch.nn.Parameter(torch.zeros(60, 60)) for _ in range(3)]
optimizer = torchdion.DoubleDion(params, lr=0.1, replicate_rank_fraction=0.1, delayed=True,
                                 replicate_mesh=dist.group.WORLD)
ctypes.pythonapi.Py_IncRef(ctypes.py_object(optimizer))  # no one ends it before the process does
open_groups = optimizer._open_groups
def open_late(axes):
    time.sleep(3)
    open_groups(axes)
for step in range(2):
    if rank == step == 1:
        optimizer._open_groups = open_late
    for param in params:
        param.grad = torch.randn(60, 60, generator=torch.Generator().manual_seed(rank + 2 * step))
    optimizer.step()
if rank == 1:
    optimizer.stats()
    print("all is exchanged")
if destroys:
    dist.destroy_process_group()
"""


@pytest.mark.parametrize("how", ["ends", pytest.param("destroys", marks=pytest.mark.long)])
def test_a_process_that_ends_leaves_no_other_one_waiting(how: str, tmp_path: Path) -> None:
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-c", ENDING]
    processes = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store"), how], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True, env=environment)
        for rank in range(2)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert outputs[1][0] == "all is exchanged\n"
    assert not any("Error" in error for _, error in outputs), outputs


def after_a_death(rank: int, world_size: int, folder: Path) -> None:
    training = Training(REPLICAS, algorithm=DELAYED)
    training.run(0, 2)
    optimizer = training.optimizer
    optimizer.synchronize_for_checkpoint()
    saved = copy.deepcopy(optimizer.state_dict())
    dist.barrier()
    training.run(2, 3)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"^torchdion: the .* over the axis 'dp' of 2 ranks failed"):
        training.run(3, 5)
    optimizer.load_state_dict(saved)  # what goes on of states that have gone harms no others
    optimizer.state_dict()
    (folder / "went on").touch()


def test_a_rank_that_is_lost_is_an_error_of_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(RankDied, match="rank 1 died of SIGKILL"):
        run_ranks(after_a_death, 2, tmp_path, time_limit=30)
    assert (tmp_path / "went on").exists()
