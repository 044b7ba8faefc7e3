"""A job whose processes are killed at random moments, also while it saves, loses nothing and leaves none waiting."""

import itertools
import os
import random
import signal
import threading
import time
from pathlib import Path

import checkpoint
import pytest
import sharded
import torch
import torch.distributed as dist
from long_cases import some_of
from rank_server import Job
from ranks import call_of, outcomes_of, run_ranks
from torch import Tensor
from trainings import LAYOUTS, OWNERS, Layout, Training

from torchdion.verification.rank import Outcome

COMPRESSED = Layout("compressed", (2,), ("dp",))
KILLED = {
    "dion": LAYOUTS[2],
    "muon": OWNERS[0],
    "normuon": LAYOUTS[2],
    "dion2": COMPRESSED,
    "dion3": LAYOUTS[2],
    "delayed double_dion": COMPRESSED,
    "double_dion": LAYOUTS[2],
    "demo": COMPRESSED,
    "lion": OWNERS[0],
    "adamw": OWNERS[0],
}
"""By algorithm: fully sharded over two, with states that two share out, or with what two exchange."""
WITHIN = 30.0  # seconds in which survivors end


def begin(folder: Path, algorithm: str) -> tuple[Training, int]:
    """From the newest checkpoint; the step."""
    training = Training(KILLED[algorithm], algorithm=algorithm)
    newest = checkpoint.newest(folder, print)
    if newest is not None:
        sharded.read(newest["folder"], training.model, training.optimizer)
    dist.barrier()  # all have read
    if dist.get_rank() == 0:
        checkpoint.remove_unfinished(folder)
    return training, newest["step"] if newest is not None else 0


def save(training: Training, folder: Path, step: int) -> None:
    unfinished = folder / f"checkpoint-{step:08d}{checkpoint.UNFINISHED}"
    if dist.get_rank() == 0:
        unfinished.mkdir()
    dist.barrier()
    sharded.write(unfinished, training.model, training.optimizer, {"step": step})
    if dist.get_rank() == 0:
        checkpoint.finish(unfinished, keep=2)
    dist.barrier()


def until_killed(
    rank: int, world_size: int, folder: Path, algorithm: str, victim: int, rounds: int, share: float
) -> None:
    """The victim dies after so many rounds of a step and a save, and a share of the time that the last one took."""
    training, step = begin(folder, algorithm)
    took = 0.3
    for done in itertools.count():
        if rank == victim and done == rounds:
            threading.Timer(share * took, os.kill, (os.getpid(), signal.SIGKILL)).start()
        began = time.monotonic()
        training.run(step, step + 1)
        step += 1
        save(training, folder, step)
        took = time.monotonic() - began


def to_the_end(rank: int, world_size: int, folder: Path | None, algorithm: str, start: int, stop: int) -> list[Tensor]:
    training = Training(KILLED[algorithm], algorithm=algorithm)
    if folder is not None:
        training, step = begin(folder, algorithm)
        assert step == start
    for step in range(start, stop):
        training.run(step, step + 1)
        training.optimizer.synchronize_for_checkpoint()  # as before a save
    return training.weights()


def killed(folder: Path, algorithm: str, victim: int, rounds: int, share: float) -> list[Outcome]:
    return outcomes_of(Job(call_of(until_killed, folder, algorithm, victim, rounds, share), 2, 60.0, grace=WITHIN))


@pytest.mark.parametrize("algorithm", some_of(KILLED, ["dion"]))
def test_kills_lose_nothing_and_leave_no_process_waiting(
    algorithm: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    moments = random.Random(0)
    newest, unfinished = 0, 0
    for kill in range(request.config.getoption("--kills")):
        victim = moments.randrange(2)
        outcomes = killed(tmp_path, algorithm, victim, moments.randrange(3), moments.random())
        assert (outcomes[victim].kind, outcomes[victim].value) == ("died", "died of SIGKILL"), kill
        assert outcomes[1 - victim].kind == "raised", (kill, outcomes[1 - victim])  # by itself
        steps = [int(path.name.removeprefix("checkpoint-")) for path in checkpoint.saved(tmp_path)]
        assert max(steps, default=0) >= newest, kill
        newest = max(steps, default=0)
        unfinished += any(tmp_path.glob("*" + checkpoint.UNFINISHED))
    assert newest > 0
    assert unfinished > 0  # some died while they saved
    resumed = run_ranks(to_the_end, 2, tmp_path, algorithm, newest, newest + 3)
    for own, uninterrupted in zip(resumed[0], run_ranks(to_the_end, 2, None, algorithm, 0, newest + 3)[0], strict=True):
        assert torch.equal(own, uninterrupted)
