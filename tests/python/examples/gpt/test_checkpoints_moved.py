"""A run of examples/gpt goes on with other processes than it began with, with the losses of one that was not
interrupted."""

import functools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import checkpoint
import log
import pytest
import sharded
import train
import trainer
from errors import Problem
from pages import blocks_in_guide
from ranks import run_ranks

EXAMPLE = Path(__file__).parents[4] / "examples" / "gpt" / "train.py"
SHAPE = ["--layers", "2", "--d-model", "32", "--heads", "4", "--context", "16"]
RUN = ["--batch", "8", "--steps", "10", "--val-every", "5", "--val-sequences", "8"]
SMALL = [*SHAPE, *RUN, "--sample-length", "0", "--dtype", "float64", "--clip", "0", "--checkpoint-every", "4"]

FLAGS = {
    "dion": [*SMALL, "--rank-fraction", "0.25"],
    **{name: [*SMALL, "--optimizer", name] for name in ("muon", "dist_muon", "dist_adamw", "demo")},
    "delayed": [*SMALL, "--optimizer", "double_dion", "--delayed"],
}


def job(dp: int, fs: int, tp: int, compress: bool = False) -> list[str]:
    return ["--dp", str(dp), "--fs", str(fs), "--tp", str(tp), *(["--compress"] if compress else [])]


ONE, FSDP, TP = job(1, 1, 1), job(1, 2, 1), job(1, 1, 2)
DDP, COMPRESSED, REPLICAS = job(2, 1, 1), job(2, 2, 1, compress=True), job(2, 1, 1, compress=True)


def losses(folder: Path) -> list[float]:
    return [record["loss"] for record in log.read(folder / log.NAME) if "loss" in record]


def train_rank(rank: int, world_size: int, flags: list[str], stop_at: int | None) -> None:
    os.environ.update({"WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank)})
    if stop_at is not None:
        step = trainer.Trainer.train_step

        def stopping(self: trainer.Trainer) -> trainer.StepReport:
            if self.step == stop_at:
                os.kill(os.getpid(), signal.SIGTERM)  # asks for the end after this step
            return step(self)

        trainer.Trainer.train_step = stopping
    assert train.main(flags) == (0 if stop_at is None else 128 + signal.SIGTERM)


def run(flags: list[str], mesh: list[str], folder: Path, stop_at: int | None = None) -> None:
    size = int(mesh[1]) * int(mesh[3]) * int(mesh[5])
    run_ranks(train_rank, size, [*flags, *mesh, "--run", str(folder)], stop_at)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[float]]:
    """The losses of a run on one process, by its optimizer."""

    @functools.cache
    def of(optimizer: str) -> list[float]:
        folder = tmp_path_factory.mktemp("runs") / "alone"
        run(FLAGS[optimizer], ONE, folder)
        assert len(losses(folder)) == 12
        return losses(folder)

    return of


@pytest.mark.parametrize(
    ("optimizer", "first", "second"),
    [
        pytest.param("dion", ONE, COMPRESSED, id="one to compressed"),
        pytest.param("dion", COMPRESSED, TP, id="compressed to tp", marks=pytest.mark.long),
        pytest.param("dion", TP, FSDP, id="tp to fsdp", marks=pytest.mark.long),
        pytest.param("dion", FSDP, ONE, id="fsdp to one", marks=pytest.mark.long),
        pytest.param("dion", DDP, FSDP, id="ddp to fsdp", marks=pytest.mark.long),
        pytest.param("muon", ONE, COMPRESSED, id="muon, one to compressed", marks=pytest.mark.long),
        pytest.param("muon", COMPRESSED, TP, id="muon, compressed to tp", marks=pytest.mark.long),
        pytest.param("muon", TP, FSDP, id="muon, tp to fsdp", marks=pytest.mark.long),
        pytest.param("muon", FSDP, ONE, id="muon, fsdp to one", marks=pytest.mark.long),
        pytest.param("dist_muon", DDP, ONE, id="dist_muon, averaged to one"),
        pytest.param("dist_adamw", ONE, REPLICAS, id="dist_adamw, one to averaging", marks=pytest.mark.long),
        pytest.param("dist_muon", REPLICAS, DDP, id="dist_muon, averaging to averaged", marks=pytest.mark.long),
    ],
)
def test_a_run_goes_on_with_other_processes(
    alone: Callable[[str], list[float]], tmp_path: Path, optimizer: str, first: list[str], second: list[str]
) -> None:
    run(FLAGS[optimizer], first, tmp_path, stop_at=5)
    assert [path.name.removesuffix(".pt") for path in checkpoint.saved(tmp_path)] == [
        "checkpoint-00000006",
        "checkpoint-00000004",
    ]
    run(["--resume", "--sample-length", "0", "--checkpoint-every", "4"], second, tmp_path)
    assert losses(tmp_path) == pytest.approx(alone(optimizer), rel=1e-9)
    assert [path.name.removesuffix(".pt") for path in checkpoint.saved(tmp_path)] == [
        "checkpoint-00000010",
        "checkpoint-00000008",
    ]
    assert not list(tmp_path.glob("*" + checkpoint.UNFINISHED))


@pytest.mark.parametrize(
    ("optimizer", "mesh"),
    [
        pytest.param("dion", FSDP, id="fsdp", marks=pytest.mark.long),
        pytest.param("dion", COMPRESSED, id="compressed", marks=pytest.mark.long),
        pytest.param("muon", FSDP, id="muon, fsdp", marks=pytest.mark.long),
        pytest.param("muon", COMPRESSED, id="muon, compressed", marks=pytest.mark.long),
        pytest.param("delayed", REPLICAS, id="delayed double_dion, replicas"),
    ],
)
def test_on_the_same_processes_it_goes_on_bit_for_bit(tmp_path: Path, optimizer: str, mesh: list[str]) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(FLAGS[optimizer], mesh, whole)
    run(FLAGS[optimizer], mesh, parts, stop_at=7)  # where the whole run synchronizes and saves too
    run(["--resume", "--sample-length", "0"], mesh, parts)
    assert losses(parts) == losses(whole)


@pytest.mark.parametrize("optimizer", ["demo", pytest.param("dion", marks=pytest.mark.long)])
def test_a_run_whose_checkpoints_change_it_may_leave_out_that_of_a_signal(tmp_path: Path, optimizer: str) -> None:
    whole, parts, saving = (tmp_path / name for name in ("whole", "parts", "saving"))
    run(FLAGS[optimizer], REPLICAS, whole)
    run([*FLAGS[optimizer], "--no-checkpoint-on-signal"], REPLICAS, parts, stop_at=5)
    assert [path.name for path in checkpoint.saved(parts)] == ["checkpoint-00000004"]
    run(["--resume", "--sample-length", "0", "--checkpoint-every", "4"], REPLICAS, parts)
    assert losses(parts) == losses(whole)
    run(FLAGS[optimizer], REPLICAS, saving, stop_at=5)
    run(["--resume", "--sample-length", "0", "--checkpoint-every", "4"], REPLICAS, saving)
    assert losses(saving) != losses(whole)


def test_a_damaged_folder_is_passed_over(tmp_path: Path) -> None:
    run(FLAGS["dion"], FSDP, tmp_path, stop_at=5)
    [shard] = (tmp_path / "checkpoint-00000006").glob("__1_*.distcp")
    shard.write_bytes(shard.read_bytes()[:-1])
    said: list[str] = []
    state = checkpoint.newest(tmp_path, said.append)
    assert state is not None
    assert state["step"] == 4
    assert said == [f"{tmp_path / 'checkpoint-00000006'} is damaged and passed over"]
    (tmp_path / "checkpoint-00000004" / ".metadata").unlink()
    with pytest.raises(Exception, match=r"no checkpoint in .* can be read"):
        checkpoint.newest(tmp_path, said.append)


def train_in_a_folder_of_its_own(rank: int, world_size: int, folder: Path) -> str:
    os.environ.update({"WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank)})
    sharded.PATIENCE = 0.2
    os.chdir(folder / str(rank))
    with pytest.raises(Problem) as problem:
        train.main([*FLAGS["dion"], *FSDP, "--run", "runs/apart"])
    return str(problem.value)


def test_processes_that_do_not_share_the_folder_are_refused_before_the_first_step(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
    sentences = run_ranks(train_in_a_folder_of_its_own, 2, tmp_path)
    said = blocks_in_guide("several-machines", "text")[-1].strip()
    assert sentences == 2 * [f"runs/apart on {socket.gethostname()} {said}"]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.long
def test_torchrun_starts_a_run_anew_whose_process_was_killed(
    alone: Callable[[str], list[float]], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", "3", "--monitor-interval", "0.1", "--", str(EXAMPLE), "--resume"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    process = subprocess.Popen(
        [*command, *FLAGS["dion"], *FSDP, "--run", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    deadline = time.monotonic() + 60
    while not (folder / "checkpoint-00000004").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    [worker] = worker_pids(process.pid)[-1:]
    os.kill(worker, signal.SIGKILL)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 0, error.decode()
    assert "failed (exitcode:" in error.decode()
    assert losses(folder) == pytest.approx(alone("dion"), rel=1e-9)


def worker_pids(parent: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
