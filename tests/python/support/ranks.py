"""Runs a function on several ranks, each a process, that meet in a gloo group on the loopback device.

    from ranks import run_ranks

    def body(rank: int, world_size: int, scale: float) -> float:    # at the top level of a test module
        total = torch.tensor(scale * rank)
        torch.distributed.all_reduce(total)
        return total.item()

    assert run_ranks(body, 4, 2.0) == [12.0] * 4

Ranks are those of `python -m torchdion verify` (torchdion/verification/launch.py): they have one thread each and are
gone when the call returns. They are forked from one process that has imported torch (rank_server.py), so that a job
costs a fraction of a second more than what it runs.
"""

import atexit
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rank_server import Call, Job

from torchdion.verification.launch import first_failure
from torchdion.verification.rank import Outcome

# A module and no script: jobs and outcomes are pickled by its name.
START = "import sys, rank_server; rank_server.main(*map(int, sys.argv[1:]))"


class RankTimeout(Exception):
    """Ranks still ran at the time limit."""


class RankDied(Exception):
    """A rank ended without a result."""


class RemoteTraceback(Exception):
    """Where an exception of a rank was raised: its text is the traceback there."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Server:
    """The process that forks ranks, and the pipes to it."""

    def __init__(self) -> None:
        jobs, self._jobs = os.pipe()
        self._outcomes, outcomes = os.pipe()
        environment = {
            "OMP_NUM_THREADS": "1",
            "TORCH_CPP_LOG_LEVEL": "ERROR",  # no warning for each rank that leaves
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)]),
        }
        command = [sys.executable, "-c", START, str(jobs), str(outcomes), str(os.getpid())]
        self.process = subprocess.Popen(
            command,
            env=os.environ | environment,
            pass_fds=(jobs, outcomes),
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for whoever waits for the ranks
        )
        os.close(jobs)
        os.close(outcomes)
        self._sink, self._source = open(self._jobs, "wb"), open(self._outcomes, "rb")  # noqa: SIM115

    def run(self, job: Job) -> list[Outcome]:
        pickle.dump(job, self._sink)
        self._sink.flush()
        outcomes: list[Outcome] = pickle.load(self._source)
        return outcomes

    def kill(self) -> None:
        """With all ranks: the kernel kills them when their parent is gone."""
        self.process.kill()
        self.process.wait()
        self._source.close()
        self._sink.close()


server: Server | None = None


def stop_server() -> None:
    global server
    if server is not None:
        server.kill()
        server = None


atexit.register(stop_server)


def call_of(body: Callable[..., Any], *args: Any, **kwargs: Any) -> Call:
    return Call(pickle.dumps((body, args, kwargs)), list(sys.path))


def outcomes_of(job: Job) -> list[Outcome]:
    """Whatever interrupts the wait, a time limit of pytest's for one, ends the ranks too."""
    global server
    if server is None or server.process.poll() is not None:
        server = Server()
    try:
        return server.run(job)
    except BaseException:
        stop_server()
        raise


def failure(outcomes: list[Outcome], time_limit: float) -> Exception | None:
    """What went wrong first."""
    first = first_failure(outcomes)
    if first is None:
        return None
    outcome = outcomes[first]
    if outcome.kind == "died":
        return RankDied(f"rank {first} {outcome.value}\n{outcome.traceback}")
    if outcome.kind == "raised":
        error: Exception = pickle.loads(outcome.value)
        others = [rank for rank, other in enumerate(outcomes) if other.kind == "raised" and rank != first]
        error.__cause__ = RemoteTraceback(f"rank {first} (later also {others}):\n{outcome.traceback}")
        return error
    running = [rank for rank, other in enumerate(outcomes) if other.kind == "ran"]
    stacks = "\n".join(f"rank {rank}:\n{outcomes[rank].traceback}" for rank in running)
    return RankTimeout(f"ranks {running} of {len(outcomes)} still ran after {time_limit:g} s\n{stacks}")


def run_ranks(
    body: Callable[..., Any], world_size: int, *args: Any, time_limit: float = 120.0, **kwargs: Any
) -> list[Any]:
    """What body(rank, world_size, *args, **kwargs) returned on each rank.

    Raises:
        Exception: what a rank raised, the first one.
        RankDied: if a rank ended otherwise.
        RankTimeout: if ranks still ran after `time_limit` seconds, with their stacks.
    """
    outcomes = outcomes_of(Job(call_of(body, *args, **kwargs), world_size, time_limit))
    for rank, outcome in enumerate(outcomes):
        if outcome.output:
            print(f"--- rank {rank} ---\n{outcome.output}", end="")
    error = failure(outcomes, time_limit)
    if error is not None:
        raise error
    return [pickle.loads(outcome.value) for outcome in outcomes]
