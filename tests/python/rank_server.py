"""Forks the ranks of tests/python/ranks.py: one process that has imported torch, so that a rank starts in milliseconds.

It reads jobs from one pipe and writes what became of each rank to another. Whoever dies takes its children along: the
kernel kills this process with the tests' and the ranks with this one.
"""

import contextlib
import ctypes
import datetime
import faulthandler
import os
import pickle
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed

PR_SET_PDEATHSIG = 1


class Job(NamedTuple):
    world_size: int
    time_limit: float  # seconds
    folder: Path  # empty; of this job alone
    sys_path: list[str]
    call: bytes  # pickled (function, args, kwargs)
    grace: float = 1.0  # seconds that the other ranks have, after one failed, to say what they saw


class Outcome(NamedTuple):
    """What became of a rank: it `returned`, `raised`, `died` of a signal or an exit, or `ran` at the time limit."""

    kind: str
    value: Any = None  # what it returned, as a pickle; the exception, as a pickle; or how it died
    traceback: str = ""
    time: float = 0.0
    output: str = ""


def die_with_parent(parent: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before the kernel knew
        os._exit(1)


def pickled_error(error: BaseException) -> bytes:
    """Of another type where its own does not survive the way."""
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
        return data
    except Exception:
        return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))


def outcome_of(job: Job, rank: int) -> Outcome:
    try:
        store = torch.distributed.FileStore(  # type: ignore[attr-defined]
            str(job.folder / "store"), job.world_size
        )
        timeout = datetime.timedelta(seconds=2 * job.time_limit)  # the job's own limit comes first: it shows stacks
        torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=job.world_size, timeout=timeout)
        sys.path[:] = job.sys_path
        function, args, kwargs = pickle.loads(job.call)
        value = pickle.dumps(function(rank, job.world_size, *args, **kwargs))
        torch.distributed.barrier()  # nobody leaves while another still reads from it
        return Outcome("returned", value)
    except BaseException as error:
        return Outcome("raised", pickled_error(error), traceback.format_exc(), time.monotonic())


def run_rank(job: Job, rank: int, server: int) -> None:
    """The life of a rank."""
    os.setpgid(0, 0)
    die_with_parent(server)
    output = os.open(job.folder / f"{rank}.output", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    stacks = open(job.folder / f"{rank}.stacks", "w")  # noqa: SIM115  open until the end
    faulthandler.enable(stacks)
    faulthandler.register(signal.SIGUSR1, stacks)
    outcome = outcome_of(job, rank)
    sys.stdout.flush()
    sys.stderr.flush()
    written = job.folder / f"{rank}.written"
    written.write_bytes(pickle.dumps(outcome))
    written.rename(job.folder / f"{rank}.outcome")
    if outcome.kind == "returned":
        torch.distributed.destroy_process_group()  # may wait for others, which a failed rank must not


def kill(pid: int) -> None:
    """The rank and whatever it has started."""
    for send in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            send(pid, signal.SIGKILL)


def fork_ranks(job: Job) -> dict[int, int]:
    """The ranks' processes."""
    server = os.getpid()
    ranks = {}
    for rank in range(job.world_size):
        pid = os.fork()
        if pid == 0:
            try:
                run_rank(job, rank, server)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(0)
        ranks[rank] = pid
    return ranks


def wait(running: dict[int, int], job: Job) -> dict[int, int]:
    """Takes those that end out of `running`, whose wait statuses it returns, until all did or the time is over.

    After a rank failed the others have the job's grace.
    """
    statuses: dict[int, int] = {}
    deadline = time.monotonic() + job.time_limit
    while running and time.monotonic() < deadline:
        for rank, pid in list(running.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                continue
            del running[rank]
            statuses[rank] = status
            if read_outcome(job, rank, status).kind != "returned":
                deadline = min(deadline, time.monotonic() + job.grace)
        time.sleep(0.002)
    return statuses


def read_outcome(job: Job, rank: int, status: int) -> Outcome:
    """Of a rank that ended."""
    path = job.folder / f"{rank}.outcome"
    if path.exists():
        outcome: Outcome = pickle.loads(path.read_bytes())
        return outcome
    code = os.waitstatus_to_exitcode(status)
    how = f"died of {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
    return Outcome("died", how, (job.folder / f"{rank}.stacks").read_text())


def stop(running: dict[int, int], job: Job) -> dict[int, Outcome]:
    """Has the ranks that still run write their stacks, and kills them."""
    for pid in running.values():
        os.kill(pid, signal.SIGUSR1)
    time.sleep(0.2 if running else 0)
    for pid in running.values():
        kill(pid)
        os.waitpid(pid, 0)
    return {rank: Outcome("ran", traceback=(job.folder / f"{rank}.stacks").read_text()) for rank in running}


def run(job: Job) -> list[Outcome]:
    """What became of each rank."""
    ranks = fork_ranks(job)
    running = dict(ranks)
    statuses = wait(running, job)
    outcomes = stop(running, job)
    for rank, status in statuses.items():
        kill(ranks[rank])  # children that it left behind
        outcomes[rank] = read_outcome(job, rank, status)
    return [
        outcomes[rank]._replace(output=(job.folder / f"{rank}.output").read_text(errors="replace"))
        for rank in sorted(outcomes)
    ]


def main(jobs: int, outcomes: int, parent: int) -> None:
    """Reads jobs from one file descriptor and writes their outcomes to the other, until the first is closed."""
    die_with_parent(parent)
    import pytest  # noqa: F401  what a job would spend its time on
    import torch._dynamo  # by the first step() of any optimizer
    import torch.distributed.checkpoint.state_dict
    import torch.distributed.fsdp
    import torch.distributed.tensor.parallel  # noqa: F401

    import torchdion  # noqa: F401

    with open(jobs, "rb") as source, open(outcomes, "wb") as sink:
        while source.peek(1):
            pickle.dump(run(pickle.load(source)), sink)
            sink.flush()
