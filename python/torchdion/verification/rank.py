"""The life of one rank that launch.py starts: it meets the others, calls the body, and writes what became of it."""

import ctypes
import faulthandler
import gc
import io
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import reduction
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from torchdion.torch_versions import TCPStore
from torchdion.verification.transport import Transport, barrier, meet

PR_SET_PDEATHSIG = 1
ENVIRONMENT = {
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    # The flight recorder of torch 2.11 takes its lock too late where two threads issue collectives, as `delayed` does.
    "TORCH_FR_BUFFER_SIZE": "0",
}


class Job(NamedTuple):
    """What ranks do: body(rank, *arguments)."""

    body: Callable[..., Any]
    arguments: tuple[Any, ...]
    world_size: int
    time_limit: float  # seconds
    transport: Transport
    meeting: tuple[str, int]  # address of the store
    parent: int


class Outcome(NamedTuple):
    """What became of a rank: it `returned`, `raised`, `died` of a signal or an exit, or `ran` until it was ended."""

    kind: str
    value: Any = None  # what it returned, as a pickle; the exception, as a pickle; or how it died
    traceback: str = ""  # of the exception; or the stack, of a rank that crashed or ran
    time: float = 0.0  # when it raised
    output: str = ""


class File:
    """Without a name, open here and in a rank."""

    def __init__(self) -> None:
        self.content = tempfile.TemporaryFile()  # noqa: SIM115  closed by launch.Rank.close()

    def __getstate__(self) -> Any:  # on its way to a rank that is not forked
        return reduction.DupFd(self.content.fileno())

    def __setstate__(self, descriptor: Any) -> None:
        self.content = os.fdopen(descriptor.detach(), "w+b")

    def is_empty(self) -> bool:
        return os.fstat(self.content.fileno()).st_size == 0

    def read(self) -> bytes:
        self.content.seek(0)
        return self.content.read()


def live(number: int, job: Job, output: File, result: File, stack: File) -> None:
    """Ends the process: the interpreter's own end may abort in the threads of a group that was not destroyed."""
    try:
        prepare(job, output, stack)
        outcome = outcome_of(number, job)
        result.content.write(pickle.dumps(outcome))
        result.content.flush()
        if outcome.kind == "returned":
            dist.destroy_process_group()  # may wait for others, which a failed rank must not
        os._exit(outcome.kind == "raised")
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def prepare(job: Job, output: File, stack: File) -> None:
    gc.freeze()  # looks for garbage would write to, and so copy, all memory that this process shares with the others
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends this process
    die_with(job.parent)
    os.dup2(output.content.fileno(), 1)
    os.dup2(output.content.fileno(), 2)
    sys.stdout = sys.stderr = io.TextIOWrapper(os.fdopen(2, "wb", buffering=0, closefd=False), write_through=True)
    faulthandler.enable(stack.content, all_threads=False)
    torch._C._set_print_stack_traces_on_fatal_signal(True)  # of threads without Python: gloo's, say
    faulthandler.register(signal.SIGUSR1, stack.content, all_threads=False)
    os.environ.update(ENVIRONMENT)
    torch.set_num_threads(1)


def outcome_of(number: int, job: Job) -> Outcome:
    try:
        limit = timedelta(seconds=2 * job.time_limit)  # the parent's comes first: it shows where every rank is
        store = TCPStore(*job.meeting, job.world_size, False, timeout=limit)
        meet(job.transport, number, limit, store=store, rank=number, world_size=job.world_size)
        value = pickle.dumps(job.body(number, *job.arguments))
        barrier()  # nobody leaves while another still reads from it
        return Outcome("returned", value)
    except BaseException as error:
        return Outcome("raised", pickled(error), traceback.format_exc(), time.monotonic())


def pickled(error: BaseException) -> bytes:
    """Of another type where its own does not survive the way."""
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
        return data
    except Exception:
        return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))


def die_with(parent: int) -> None:
    """Also where the parent gets a SIGKILL."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before the kernel knew
        os._exit(1)
