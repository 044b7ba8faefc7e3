"""Processes on this machine, one a rank, that are gone when the call returns, whatever ends it.

They are forked from a process that has imported torch (or, for CUDA, start anew), have one thread each, and meet on a
socket of the loopback device that rank 0 inherits. What they say goes to files without names. So nothing is left over.
"""

import ctypes
import faulthandler
import io
import os
import pickle
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing import connection, get_context, reduction
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from torchdion.torch_versions import TCPStore, import_dynamo
from torchdion.verification.transport import Transport, barrier, meet

PR_SET_PDEATHSIG = 1
LAST_LINES = 12
KERNEL_SECONDS = 5.0
STACK = "Stack (most recent call first):"  # how faulthandler begins


class RanksFailed(Exception):
    """A rank died, raised, or still ran at the time limit; the text says which."""


class Terminated(BaseException):
    """By SIGTERM."""


class Job(NamedTuple):
    """What ranks do: body(rank, *arguments)."""

    body: Callable[..., Any]
    arguments: tuple[Any, ...]
    world_size: int
    time_limit: float  # seconds
    transport: Transport
    meeting: socket.socket
    parent: int


class File:
    """Without a name, open here and in a rank."""

    def __init__(self) -> None:
        self.content = tempfile.TemporaryFile()  # noqa: SIM115  closed by Rank.end()

    def __getstate__(self) -> Any:  # on its way to a rank that is not forked
        return reduction.DupFd(self.content.fileno())

    def __setstate__(self, descriptor: Any) -> None:
        self.content = os.fdopen(descriptor.detach(), "w+b")


class Rank:
    """A process and what it leaves: its words, and what the body returned."""

    def __init__(self, number: int, job: Job) -> None:
        self.number = number
        self.output, self.result = File(), File()
        context: Any = get_context(job.transport.start_method)
        self.process: BaseProcess = context.Process(
            target=_live, args=(number, job, self.output, self.result), daemon=True, name=f"rank {number}"
        )

    def words(self) -> list[str]:
        self.output.content.seek(0)
        return self.output.content.read().decode(errors="replace").splitlines()

    def last_words(self) -> str:
        lines = self.words()[-LAST_LINES:]
        return "\n".join([f"rank {self.number} said:", *lines]) if lines else f"rank {self.number} said nothing"

    def stack(self) -> str:
        """What SIGUSR1 made the rank write: its innermost calls."""
        lines = self.words()
        begin = lines.index(STACK) if STACK in lines else len(lines)
        return "\n".join([f"rank {self.number} was in:", *lines[begin + 1 :][:LAST_LINES]])

    def kill(self) -> None:
        """With whatever it has started."""
        if self.process.pid is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()  # also before it leads a group

    def end(self) -> None:
        """Once it is killed; what the kernel takes long to end is not waited for."""
        if self.process.pid is not None:
            self.process.join(KERNEL_SECONDS)
        self.output.content.close()
        self.result.content.close()


def launch(
    body: Callable[..., Any],
    world_size: int,
    arguments: tuple[Any, ...],
    time_limit: float,
    transport: Transport = Transport(),  # noqa: B008  frozen
) -> Any:
    """What body(rank, *arguments) returned on rank 0, inside a process group of all ranks.

    Raises:
        RanksFailed: within `time_limit` seconds.
    """
    import_dynamo()
    ranks: list[Rank] = []
    deadline = time.monotonic() + time_limit
    with socket.create_server(("127.0.0.1", 0), backlog=world_size) as meeting, _sigterm_unwinds():
        job = Job(body, arguments, world_size, time_limit, transport, meeting, os.getpid())
        try:
            for number in range(world_size):
                _start(number, job, ranks)
                if time.monotonic() >= deadline:
                    raise RanksFailed(f"{number + 1} of {world_size} ranks were started in {time_limit:g} s, and ended")
            _wait(ranks, time_limit, deadline)
            ranks[0].result.content.seek(0)
            return pickle.load(ranks[0].result.content)
        finally:
            for rank in ranks:
                rank.kill()
            for rank in ranks:
                rank.end()


def _start(number: int, job: Job, ranks: list[Rank]) -> None:
    try:
        ranks.append(Rank(number, job))
        ranks[number].process.start()
    except OSError as error:
        raise RanksFailed(f"rank {number} could not be started, and all were ended: {error}") from error


@contextmanager
def _sigterm_unwinds() -> Iterator[None]:
    """As Ctrl-C does."""

    def unwind(number: int, frame: Any) -> None:
        raise Terminated

    previous = signal.signal(signal.SIGTERM, unwind)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _wait(ranks: list[Rank], time_limit: float, deadline: float) -> None:
    """Until all have returned, the first has failed, or the time is over."""
    running = list(ranks)
    while running:
        sentinels = [rank.process.sentinel for rank in running]
        ended = connection.wait(sentinels, max(0.0, deadline - time.monotonic()))
        for rank in running:
            if rank.process.sentinel in ended:
                rank.process.join(1.0)  # its exit status comes a little later
        failed = [rank for rank in running if rank.process.exitcode]
        if failed:
            first = min(failed, key=_exit_code)  # one that died of a signal, whose code is negative, before others
            raise RanksFailed(f"rank {first.number} {_end_of(first)}, and all were ended; {first.last_words()}")
        running = [rank for rank in running if rank.process.exitcode is None]
        if running and time.monotonic() >= deadline:
            raise RanksFailed(_stacks(running, time_limit))


def _exit_code(rank: Rank) -> int:
    code = rank.process.exitcode
    assert code is not None
    return code


def _end_of(rank: Rank) -> str:
    code = _exit_code(rank)
    return f"died of {signal.Signals(-code).name}" if code < 0 else "raised an error"


def _stacks(running: list[Rank], time_limit: float) -> str:
    for rank in running:
        os.kill(rank.process.pid or 0, signal.SIGUSR1)
    time.sleep(0.2)
    numbers = ", ".join(str(rank.number) for rank in running)
    return "\n".join(
        [f"still running at the time limit of {time_limit:g} s, and all were ended: ranks {numbers}"]
        + [rank.stack() for rank in running]
    )


def _live(number: int, job: Job, output: File, result: File) -> None:
    """The life of a rank."""
    try:
        _work(number, job, output, result)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # the interpreter's end may abort in the threads of a process group that was not destroyed


def _work(number: int, job: Job, output: File, result: File) -> None:
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends this process
    _die_with(job.parent)
    os.dup2(output.content.fileno(), 1)
    os.dup2(output.content.fileno(), 2)
    sys.stdout = sys.stderr = io.TextIOWrapper(os.fdopen(2, "wb", closefd=False), write_through=True)
    faulthandler.register(signal.SIGUSR1, output.content, all_threads=False)
    os.environ.update({"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "TORCH_CPP_LOG_LEVEL": "ERROR"})
    torch.set_num_threads(1)
    limit = timedelta(seconds=2 * job.time_limit)  # the parent's comes first: it shows where every rank is
    host, port = job.meeting.getsockname()
    listening = os.dup(job.meeting.fileno()) if number == 0 else None
    job.meeting.close()
    store = TCPStore(host, port, job.world_size, number == 0, timeout=limit, master_listen_fd=listening)
    meet(job.transport, number, limit, store=store, rank=number, world_size=job.world_size)
    pickle.dump(job.body(number, *job.arguments), result.content)
    result.content.flush()
    barrier()  # nobody leaves while another still reads from it
    dist.destroy_process_group()


def _die_with(parent: int) -> None:
    """Also where the parent gets a SIGKILL."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before the kernel knew
        os._exit(1)
