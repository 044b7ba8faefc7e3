"""Launches the ranks of ranks.py: one process that has imported torch, so that a rank starts in milliseconds.

It reads jobs from one pipe and writes what became of each rank to another. The kernel kills it with the tests' process.
"""

import pickle
import sys
from typing import Any, NamedTuple

from torchdion.verification.launch import run
from torchdion.verification.rank import die_with


class Call(NamedTuple):
    """function(rank, world_size, *args, **kwargs), as it is sent."""

    pickle: bytes  # (function, args, kwargs)
    sys_path: list[str]  # where their modules are found


class Job(NamedTuple):
    call: Call
    world_size: int
    time_limit: float  # seconds
    grace: float = 1.0  # seconds that the other ranks have, after one failed, to say what they saw


def body(rank: int, world_size: int, call: Call) -> Any:
    sys.path[:] = call.sys_path
    function, args, kwargs = pickle.loads(call.pickle)
    return function(rank, world_size, *args, **kwargs)


def main(jobs: int, outcomes: int, parent: int) -> None:
    """Reads jobs from one file descriptor and writes their outcomes to the other, until the first is closed."""
    die_with(parent)
    import pytest  # noqa: F401  what a job would spend its time on
    import torch.distributed.checkpoint.state_dict
    import torch.distributed.fsdp
    import torch.distributed.tensor.parallel  # noqa: F401

    with open(jobs, "rb") as source, open(outcomes, "wb") as sink:
        while source.peek(1):
            job: Job = pickle.load(source)
            pickle.dump(run(body, job.world_size, (job.world_size, job.call), job.time_limit, grace=job.grace), sink)
            sink.flush()
