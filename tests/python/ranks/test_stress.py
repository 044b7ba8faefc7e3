"""Groups, collectives and tensors are made, overlapped and dropped over and over: no rank may die of a signal.

Each test takes --stress seconds; a failure prints the stacks of all threads of the rank that died.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks import run_ranks
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from trainings import LAYOUTS, OWNERS, Layout, Training

pytestmark = pytest.mark.long


@pytest.fixture
def seconds(request: pytest.FixtureRequest) -> float:
    return float(request.config.getoption("--stress"))


def rounds(seconds: float) -> Iterator[int]:
    """Numbers until the time is over for one of the ranks, which all end alike."""
    deadline, number = time.monotonic() + seconds, 0
    over = torch.zeros(1)
    while not over:
        yield number
        number += 1
        over = torch.tensor([float(time.monotonic() > deadline)])
        dist.all_reduce(over, dist.ReduceOp.MAX)


def assert_survived(ranks: int, seconds: float, body: Callable[..., int], *arguments: object) -> None:
    """Each rank calls the body, which counts what it did."""
    counts = run_ranks(body, ranks, seconds, *arguments, time_limit=seconds + 120)
    print(f"{counts[0]} of {body.__name__}")
    assert counts[0] > 0


def gather_at_once(rank: int, world_size: int, seconds: float) -> int:
    """As DTensor.full_tensor() gathers, but many at a time, which end as fast as threads can end them."""
    group = dist.group.WORLD
    assert group is not None
    piece, gathered, count = torch.ones(4), torch.zeros(4), 0
    for _ in rounds(seconds):
        for _ in range(1000):
            works = [group.allgather_coalesced([[gathered]], [piece]) for _ in range(64)]
            for work in works:
                work.wait()
            count += len(works)
    assert torch.equal(gathered, piece)
    return count


def test_gathers_of_one_group_that_end_at_once(seconds: float) -> None:
    """Under two threads, torch's default, this rank dies within half a minute (one_thread_per_gloo_group)."""
    assert_survived(1, seconds, gather_at_once)


def make_and_drop_groups(rank: int, world_size: int, seconds: float) -> int:
    whole, made = torch.arange(24.0).reshape(8, 3), 0
    for number in rounds(seconds):
        group = dist.new_group()
        mesh = init_device_mesh("cpu", (world_size,))
        cut = distribute_tensor(whole, mesh, [Shard(number % 2)], src_data_rank=None)
        assert torch.equal(cut.full_tensor(), whole)
        started = dist.all_reduce(torch.ones(100), group=group, async_op=True)
        if number % 2:
            assert started is not None
            started.wait()
        dist.destroy_process_group(group)  # also while a collective may be under way
        made += 1
    return made


def test_groups_that_are_made_and_dropped(seconds: float) -> None:
    assert_survived(2, seconds, make_and_drop_groups)


def drop_tensors(rank: int, world_size: int, seconds: float) -> int:
    """The last references to tensors are those of gloo's threads, while Python makes and looks at others."""
    count = 0
    for number in rounds(seconds):
        for size in range(1, 200):
            tensor = torch.full((size,), float(number), requires_grad=True)
            tensor.note = "in a dict of its own"  # type: ignore[attr-defined]
            dist.all_reduce(tensor.detach(), async_op=True)
            dist.broadcast(tensor.detach().view(-1), src=size % world_size, async_op=True)
            count += 2
    return count


def test_tensors_whose_last_reference_is_that_of_a_thread_of_gloo(seconds: float) -> None:
    assert_survived(2, seconds, drop_tensors)


COMPRESSED = Layout("compressed", (2,), ("dp",))
TRAINED = (
    ("delayed double_dion", COMPRESSED),
    ("dion", COMPRESSED),
    ("dion", LAYOUTS[2]),
    ("normuon", LAYOUTS[3]),
    ("muon", OWNERS[0]),
)


def train_and_save(rank: int, world_size: int, seconds: float, folder: Path) -> int:
    """Optimizers are dropped while a thread of theirs, or of a save, may issue collectives."""
    trained = 0
    for number in rounds(seconds):
        algorithm, layout = TRAINED[number % len(TRAINED)]
        training = Training(layout, algorithm=algorithm)
        training.run(0, 2)
        training.optimizer.synchronize_for_checkpoint()
        model, optimizer = get_state_dict(training.model, training.optimizer)
        saving = dcp.async_save(
            {"model": model, "optimizer": optimizer},
            checkpoint_id=str(folder / "saved"),
            process_group=dist.new_group(),
        )
        training.run(2, 4)
        assert all(weight.isfinite().all() for weight in training.weights())
        saving.result()
        trained += 1
    return trained


def test_trainings_that_save_in_the_background_and_are_dropped(seconds: float, tmp_path: Path) -> None:
    assert_survived(2, seconds, train_and_save, tmp_path)


# The interpreter ends while gloo's threads may hold the tensors of the last step, and a thread what is in flight.
ENDS = """
import faulthandler, sys, time
import torch, torch.distributed as dist
import torchdion
faulthandler.enable()
torch._C._set_print_stack_traces_on_fatal_signal(True)
rank, store, number = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
torch.set_num_threads(1)
dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
made_by = [torchdion.Dion, torchdion.Muon, torchdion.DoubleDion][number % 3]
delayed = {"delayed": True} if made_by is torchdion.DoubleDion else {}
params = [torch.nn.Parameter(torch.ones(40, 40)) for _ in range(8)]
optimizer = made_by(params, lr=0.1, replicate_mesh=dist.group.WORLD, **delayed)
for step in range(2):
    for param in params:
        param.grad = torch.randn(40, 40)
    optimizer.step()
if number % 2:
    dist.destroy_process_group()
"""


def test_interpreters_that_end_right_after_a_step(seconds: float, tmp_path: Path) -> None:
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    deadline, runs = time.monotonic() + seconds, 0
    while runs < 6 or time.monotonic() < deadline:
        processes = [
            subprocess.Popen([sys.executable, "-c", ENDS, str(rank), str(tmp_path / str(runs)), str(runs)],
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
            for rank in range(2)
        ]  # fmt: skip
        outputs = [process.communicate(timeout=300)[0] for process in processes]
        assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
        runs += 1
    print(f"{2 * runs} interpreters")
