"""examples/gpt on several processes: the losses of the run on one, whatever the job's directions."""

import functools
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import log
import options
import parallel
import processes
import pytest
import torch
import train
from data import Batch
from errors import Problem
from processes import Job
from ranks import run_ranks

EXAMPLE = Path(__file__).parents[4] / "examples" / "gpt" / "train.py"
SHAPE = ["--layers", "2", "--d-model", "32", "--heads", "4", "--context", "16"]
RUN = ["--batch", "8", "--steps", "10", "--val-every", "5", "--val-sequences", "8"]
SMALL = [*SHAPE, *RUN, "--sample-length", "0"]
OPTIMIZERS = {"dion": "--optimizer dion --rank-fraction 0.25", "muon": "--optimizer muon"}
MESHES = [(2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 1), (2, 1, 2), (1, 2, 2), (2, 2, 2)]
REPLICATED = [mesh for mesh in MESHES if mesh[0] > 1]


def cases(meshes: list[tuple[int, int, int]], **short: list[tuple[int, int, int]]) -> list[Any]:
    """The flags of each optimizer on each mesh; `make test` takes the short ones."""
    return [
        pytest.param(flags, mesh, id=f"{name}-{mesh}", marks=() if mesh in short[name] else pytest.mark.long)
        for name, flags in OPTIMIZERS.items()
        for mesh in meshes
    ]


def train_rank(rank: int, world_size: int, flags: list[str]) -> None:
    os.environ.update({"WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank)})
    assert train.main(flags) == 0


def job(dp: int, fs: int, tp: int) -> list[str]:
    return ["--dp", str(dp), "--fs", str(fs), "--tp", str(tp)]


def losses(folder: Path) -> list[float]:
    """Of ten training steps and two validations."""
    found = [record["loss"] for record in log.read(folder / log.NAME) if "loss" in record]
    assert len(found) == 12
    return found


def meet_late(rank: int, world_size: int, folder: Path) -> None:
    if rank == 1:
        time.sleep(1)
        (folder / "looked").touch()
    processes.start(Job(fs=world_size), "cpu")
    assert (folder / "looked").exists()


def test_no_process_writes_before_all_have_looked_what_is_there(tmp_path: Path) -> None:
    run_ranks(meet_late, 2, tmp_path)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[float]]:
    """The losses of a run on one process, by its flags."""

    @functools.cache
    def run(flags: str) -> list[float]:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        folder = tmp_path_factory.mktemp("runs") / "alone"
        assert train.main([*SMALL, *flags.split(), "--run", str(folder)]) == 0
        torch.set_num_threads(threads)
        return losses(folder)

    return run


@pytest.mark.parametrize(
    ("optimizer", "mesh"),
    cases(MESHES, dion=[(1, 2, 1), (2, 2, 2)], muon=[(1, 2, 1)]),
)
def test_the_losses_are_those_of_one_process(
    alone: Callable[[str], list[float]], tmp_path: Path, optimizer: str, mesh: tuple[int, int, int]
) -> None:
    flags = f"{optimizer} --dtype float64 --clip 0.2"
    run_ranks(train_rank, math.prod(mesh), [*SMALL, *flags.split(), *job(*mesh), "--run", str(tmp_path)])
    assert losses(tmp_path) == pytest.approx(alone(flags), rel=1e-9)
    assert losses(tmp_path) != pytest.approx(alone(f"{optimizer} --dtype float64 --clip 0"), rel=1e-4)


@pytest.mark.parametrize(("optimizer", "mesh"), cases(REPLICATED, dion=[(2, 2, 1)], muon=[(2, 1, 1)]))
def test_compressed_replicas_that_accumulate_gradients_have_the_losses_of_one_process(
    alone: Callable[[str], list[float]], tmp_path: Path, optimizer: str, mesh: tuple[int, int, int]
) -> None:
    flags = f"{optimizer} --dtype float64 --clip 0"
    own = ["--compress", "--micro-batch", "1", *job(*mesh), "--run", str(tmp_path)]
    run_ranks(train_rank, math.prod(mesh), [*SMALL, *flags.split(), *own])
    assert losses(tmp_path) == pytest.approx(alone(flags), rel=1e-9)


def torchrun(count: int, script: Path, *arguments: str) -> str:
    """What the processes print; none may fail."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count), "--"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    result = subprocess.run(
        [*command, str(script), *arguments], capture_output=True, text=True, env=environment, timeout=240
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.long
def test_torchrun_starts_eight_processes_of_which_one_speaks(
    alone: Callable[[str], list[float]], tmp_path: Path
) -> None:
    flags = f"{OPTIMIZERS['dion']} --dtype float32 --clip 0"
    own = [*SMALL, *flags.split(), "--compress", *job(2, 2, 2), "--run", str(tmp_path), "--sample-length", "8"]
    lines = torchrun(8, EXAMPLE, *own).splitlines()
    assert [bool(re.match(r"step \d+/10: ", line)) for line in lines[:12]] == [True] * 12
    assert sum(line.startswith("step 10/10: validation loss ") for line in lines) == 1
    assert losses(tmp_path) == pytest.approx(alone(flags), rel=1e-5)


# Without the wait for gloo's threads about half of the attempts fail.
@pytest.mark.long
@pytest.mark.parametrize("attempt", range(5))
def test_a_process_that_ends_during_an_exchange_is_not_aborted(tmp_path: Path, attempt: int) -> None:
    script = tmp_path / "ends.py"
    script.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(EXAMPLE.parent)!r})\n"
        "import processes, torch\n"
        "processes.start(processes.Job(fs=2), 'cpu')\n"
        "torch.distributed.barrier()\n"
        "torch.distributed.all_reduce(torch.ones(100_000), async_op=True)\n"
    )
    torchrun(2, script)


@pytest.mark.parametrize(
    ("flags", "processes", "sentence"),
    [
        ("--dp 2 --fs 2", 1, "--dp × --fs × --tp is 4, but torchrun started 1 (--nproc-per-node)"),
        ("", 2, "--dp × --fs × --tp is 1, but torchrun started 2 (--nproc-per-node)"),
        ("--fs 2 --compress", 2, "--compress is about what replicas send to each other; it needs --dp 2 or more"),
        ("--dp 2 --optimizer torch_muon", 2,
         "--optimizer torch_muon runs on one process; --dp, --fs and --tp need dion, double_dion, muon, normuon, "
         "dion2, dion3, demo, lion, adamw, dist_muon, dist_adamw"),
        ("--dp 2 --fs 2 --optimizer dist_muon", 4,
         "--optimizer dist_muon has all of the model on every process; --fs and --tp must be 1"),
        ("--tp 3", 3, "--tp 3 does not divide --heads 4"),
        ("--dp 3", 3, "--dp × --fs = 3 does not divide --batch 32"),
        ("--dp 2 --val-sequences 7", 2, "--dp × --fs = 2 does not divide --val-sequences 7"),
    ],
)  # fmt: skip
def test_a_job_that_cannot_be_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, flags: str, processes: int, sentence: str
) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    given = options.parse(flags.split())
    with pytest.raises(Problem) as problem:
        options.recipe(given, options.session(given).device)
    assert str(problem.value).startswith(sentence)


EIGHT = "--dp 2 --fs 2 --tp 2"
TOO_FEW = "--device cuda: {} processes need a GPU each, and PyTorch finds {}"


@pytest.mark.parametrize(
    ("flags", "gpus", "here", "expected"),
    [
        ("", 0, None, "cpu"),
        ("", 1, None, "cuda"),
        ("--device cuda:1", 2, None, "cuda:1"),
        (EIGHT, 8, "8", "cuda"),
        (EIGHT, 7, "8", "cpu"),
        (EIGHT, 4, "4", "cuda"),
        (f"{EIGHT} --device cpu", 8, "8", "cpu"),
        (f"{EIGHT} --device cuda", 7, "8", TOO_FEW.format(8, 7)),
        (f"{EIGHT} --device cuda", 3, "4", TOO_FEW.format(4, 3)),
        (f"{EIGHT} --device cuda:1", 8, "8",
         "--device cuda:1 is one GPU for 8 processes; --device cuda gives each its own"),
    ],
)  # fmt: skip
def test_each_process_has_a_gpu_or_none_has(
    monkeypatch: pytest.MonkeyPatch, flags: str, gpus: int, here: str | None, expected: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    if here is not None:
        monkeypatch.setenv("WORLD_SIZE", "8")
        monkeypatch.setenv("LOCAL_WORLD_SIZE", here)
    given = options.parse(flags.split())
    try:
        found = str(options.session(given).device)
    except Problem as problem:
        found = str(problem)
    assert found == expected


@pytest.mark.parametrize(("device", "backend"), [("cpu", "gloo"), ("cuda", "cpu:gloo,cuda:nccl")])
def test_processes_meet_over_what_moves_their_tensors(
    monkeypatch: pytest.MonkeyPatch, device: str, backend: str
) -> None:
    calls: list[object] = []

    def stop(*mesh: object, **names: object) -> None:
        raise InterruptedError

    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setattr(torch.cuda, "set_device", calls.append)
    monkeypatch.setattr(parallel, "_meet", calls.append)
    monkeypatch.setattr(parallel, "init_device_mesh", stop)
    with pytest.raises(InterruptedError):
        parallel.ManyProcesses(Job(dp=4), device)
    assert calls == [*([3] if device == "cuda" else []), backend]


@pytest.mark.parametrize(("machines", "restarts", "shared"), [(1, 3, True), (2, 0, True), (2, 3, False), (2, 3, True)])
def test_restarts_on_several_machines_need_a_new_store_each_time(
    monkeypatch: pytest.MonkeyPatch, machines: int, restarts: int, shared: bool
) -> None:
    def meet(url: str) -> Iterator[tuple[object, int, int]]:
        raise InterruptedError

    monkeypatch.setattr(parallel, "rendezvous", meet)
    monkeypatch.setenv("GROUP_WORLD_SIZE", str(machines))
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", str(restarts))
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", str(shared))
    refused = machines == 2 and restarts == 3 and shared
    with pytest.raises(Problem if refused else InterruptedError) as problem:
        parallel._meet("gloo")
    assert ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in str(problem.value)) == refused


def test_fewer_sequences_than_were_asked_for_that_cannot_be_shared_out_evenly_are_one_sentence() -> None:
    ranks = SimpleNamespace(job=Job(dp=2), data=SimpleNamespace(rank=lambda: 0))
    seven = Batch(torch.zeros(7, 4), torch.zeros(7, 4))  # all that the data have
    with pytest.raises(Problem, match="--val-sequences: 7 sequences cannot be shared out evenly to --dp × --fs = 2"):
        parallel.ManyProcesses.share(ranks, seven, "--val-sequences")
