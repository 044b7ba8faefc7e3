"""The ranks of multi-process tests: what one returns, raises or dies of reaches the test, and nothing stays behind."""

import gc
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import RankDied, RankTimeout, run_ranks
from torch.distributed.device_mesh import init_device_mesh


def sum_of_ranks(rank: int, world_size: int, scale: float) -> tuple[int, float]:
    total = torch.tensor(scale * rank)
    dist.all_reduce(total)
    return rank, total.item()


def raises_on_one(rank: int, world_size: int, failing: int) -> None:
    if rank == failing:
        raise LookupError(f"rank {rank} of {world_size} lost its way")
    dist.barrier()


def hangs_on_one(rank: int, world_size: int, folder: Path) -> None:
    (folder / str(rank)).write_text(str(os.getpid()))
    if rank != 1:
        dist.barrier()
    while rank == 1:
        time.sleep(0.01)


def dies_on_one(rank: int, world_size: int, signal_number: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal_number)
    dist.barrier()


def leaves_a_child(rank: int, world_size: int) -> int:
    return subprocess.Popen(["sleep", "1000"]).pid


def prints(rank: int, world_size: int) -> None:
    print(f"rank {rank} speaks")


def threads(rank: int, world_size: int) -> tuple[int, str, str]:
    return torch.get_num_threads(), os.environ["GLOO_SOCKET_IFNAME"], os.environ["TORCH_FR_BUFFER_SIZE"]


def threads_of_groups(rank: int, world_size: int) -> list[tuple[int, timedelta]]:
    cpu = torch.device("cpu")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    groups = [dist.group.WORLD, dist.new_group([0, 1, 2, 3], timedelta(seconds=7)), *mesh.get_all_groups()]
    options = [group._get_backend(cpu).options for group in groups]
    return [(each._threads, each._timeout) for each in options]


def of_no_interface(rank: int, world_size: int) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "nowhere0"
    dist.new_group([0])


def is_gone(pid: int) -> bool:
    """Zombies of another parent count as gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def frozen(rank: int, world_size: int) -> int:
    return gc.get_freeze_count()


def assert_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 10
    while not all(is_gone(pid) for pid in pids):
        assert time.monotonic() < deadline, pids
        time.sleep(0.01)


@pytest.mark.parametrize("world_size", [1, 3, 8])
def test_each_rank_returns_its_result(world_size: int) -> None:
    total = 2.0 * sum(range(world_size))
    assert run_ranks(sum_of_ranks, world_size, scale=2.0) == [(rank, total) for rank in range(world_size)]


def test_ranks_have_one_thread_the_loopback_device_and_no_flight_recorder() -> None:
    assert run_ranks(threads, 2) == [(1, "lo", "0")] * 2


def test_groups_of_gloo_have_one_thread_and_the_time_limit_that_they_are_given() -> None:
    of_meshes = (1, timedelta(minutes=30))  # torch's default
    expected = [(1, timedelta(seconds=200)), (1, timedelta(seconds=7)), of_meshes, of_meshes]
    assert run_ranks(threads_of_groups, 4, time_limit=100) == [expected] * 4


def test_groups_of_gloo_have_the_interface_that_the_environment_says() -> None:
    with pytest.raises(RuntimeError, match="nowhere0"):
        run_ranks(of_no_interface, 1)


def test_no_look_for_garbage_copies_the_memory_that_ranks_share() -> None:
    assert min(run_ranks(frozen, 2)) > 100_000  # objects of torch alone


@pytest.mark.parametrize("failing", [0, 2])
def test_what_a_rank_raises_is_raised_with_its_traceback_and_not_what_the_others_raise_for_its_absence(
    failing: int,
) -> None:
    with pytest.raises(LookupError, match=f"rank {failing} of 3 lost its way") as caught:
        run_ranks(raises_on_one, 3, failing)
    assert "in raises_on_one" in str(caught.value.__cause__)


def test_a_rank_that_hangs_is_named_with_its_stack_and_all_are_killed(tmp_path: Path) -> None:
    with pytest.raises(RankTimeout, match=r"ranks \[0, 1, 2\] of 3 still ran after 3 s") as caught:
        run_ranks(hangs_on_one, 3, tmp_path, time_limit=3)
    assert str(caught.value).count("in hangs_on_one") == 3
    assert_gone([int((tmp_path / str(rank)).read_text()) for rank in range(3)])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_rank_that_dies_is_named_with_its_signal_and_the_next_job_runs(number: signal.Signals) -> None:
    with pytest.raises(RankDied, match=f"rank 1 died of {number.name}") as caught:
        run_ranks(dies_on_one, 3, number)
    assert ("in dies_on_one" in str(caught.value)) == (number == signal.SIGSEGV)
    assert run_ranks(sum_of_ranks, 2, 1.0) == [(0, 1.0), (1, 1.0)]


def test_what_a_rank_starts_ends_with_it() -> None:
    assert_gone(run_ranks(leaves_a_child, 2))


def test_what_ranks_print_is_printed_by_the_test(capsys: pytest.CaptureFixture[str]) -> None:
    run_ranks(prints, 2)
    said = capsys.readouterr().out.splitlines()
    said = [line for line in said if not line.startswith("[Gloo]")]  # torch 2.10 prints who is connected
    assert said == ["--- rank 0 ---", "rank 0 speaks", "--- rank 1 ---", "rank 1 speaks"]


def test_ranks_die_with_the_process_that_wanted_them(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path; from ranks import run_ranks; from tests.python.ranks import test_run_ranks;"
        f"run_ranks(test_run_ranks.hangs_on_one, 2, Path({str(tmp_path)!r}))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen([sys.executable, "-c", program], env=environment)
    deadline = time.monotonic() + 60
    while not all((tmp_path / rank).exists() and (tmp_path / rank).read_text() for rank in ("0", "1")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert_gone([int((tmp_path / rank).read_text()) for rank in ("0", "1")])
