"""Trains cells in processes of their own, as many at once as there are processors or GPUs, and can stop anywhere.

A cell is train.py with its flags, in a folder of its own, on one thread, so that its losses do not depend on what runs
beside it. A folder with a checkpoint in it goes on from there. Processes are forked from a server that has imported
torch once; those of a cell on many ranks are torchrun's.
"""

import ctypes
import fcntl
import gc
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from errors import Problem

from comparison.cells import Cell
from comparison.results import Result, of_log

EXAMPLE = Path(__file__).resolve().parent.parent
OUTPUT = "output.txt"
LOG = "log.jsonl"
PR_SET_PDEATHSIG = 1
POLL_SECONDS = 0.05


class Failed(Problem):
    """A training ended by an error that is not divergence."""


def leave_group() -> None:
    """A terminal's signals go to the process that started this one alone, which asks it to stop."""
    os.setpgrp()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def lock_of(folder: Path) -> int:
    """Held by the one process that trains in the folder, also if another program takes its place."""
    return os.open(folder / "lock", os.O_WRONLY | os.O_CREAT)


def stop_with_parent() -> None:
    """Makes this process stop when the one that asked the server for it is gone."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def leave_group_as_child() -> None:
    """Of a process that is started without the server."""
    leave_group()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


@contextmanager
def without_ctrl_c() -> Iterator[None]:
    """A terminal's Ctrl-C waits: what is started here inherits that, and lets it in when it has left the group."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def train_here(arguments: list[str], folder: str, environment: dict[str, str]) -> None:
    """A cell on one process; in that process."""
    gc.freeze()  # looks for garbage would copy the memory that this process shares with its server
    leave_group()
    stop_with_parent()
    fcntl.flock(lock_of(Path(folder)), fcntl.LOCK_EX)
    os.environ.update(environment)
    output = os.open(f"{folder}/{OUTPUT}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    import train

    torch.set_num_threads(1)
    sys.argv = ["train.py", *arguments]
    try:
        code = train.main(arguments)
    except Problem as problem:
        print(problem, file=sys.stderr)
        code = problem.code
    sys.exit(code)


def server() -> Any:
    """Forks processes that have torch imported; their parent is not this process, which may have threads."""
    context = multiprocessing.get_context("forkserver")
    # Installed packages alone: those of the example would be looked for in the working directory, before all others.
    # The first optimizer of a process imports torch._dynamo, which takes as long as a short training.
    context.set_forkserver_preload(["torch", "torch._dynamo", "torchdion"])
    resource_tracker.ensure_running()  # which would let Ctrl-C in when it starts with the server
    return context


@dataclass
class Training:
    """A cell that is being trained."""

    cell: Cell
    folder: Path
    process: "BaseProcess | subprocess.Popen[bytes]"
    slots: list[str]
    began: float
    resumed: bool
    said: int  # bytes of OUTPUT that earlier processes have left
    is_stopped: bool = False

    def ended_with(self) -> int | None:
        """The exit status, None while it runs."""
        if isinstance(self.process, subprocess.Popen):
            return self.process.poll()
        return self.process.exitcode

    def stop(self) -> None:
        """Asks it to end, with a checkpoint where that does not change its losses."""
        self.is_stopped = True
        self.process.terminate()

    def complaint(self, code: int) -> str:
        """Why it ended with this status: a signal, train.py's last sentence, or else the last line that was said."""
        if code < 0:
            return f"{signal.Signals(-code).name} ended it"
        path = self.folder / OUTPUT
        text = path.read_bytes()[self.said :].decode(errors="replace") if path.exists() else ""
        lines = [line for line in text.splitlines() if line.strip()]
        sentences = [line.partition("train.py: ")[2] for line in lines if "train.py: " in line]
        # torchrun's report ends with the rank that failed first.
        signals = [f"{name} ended a rank" for name in re.findall(r"Signal \d+ \((SIG\w+)\) received", text)]
        return (sentences or signals or lines or ["it said nothing"])[-1]


class Pool:
    """Trainings that run at once.

    Args:
        folder: of unfinished trainings.
        jobs: how many processes train at once; of GPUs each has its own.
        device: of train.py.
    """

    def __init__(self, folder: Path, jobs: int, device: str) -> None:
        self.folder = folder
        self.jobs = jobs
        self.running: list[Training] = []
        self._device = device
        self._free = _gpus() if device == "cuda" else list(map(str, range(jobs)))
        if len(self._free) < jobs:
            raise Problem(f"--jobs {jobs} is more than the GPUs here, {len(self._free)}")
        self._free = self._free[:jobs]
        self._context: Any = None
        folder.mkdir(parents=True, exist_ok=True)

    def has_room_for(self, cell: Cell) -> bool:
        """On CPUs a cell of more processes than `jobs` gets all of them."""
        return not self.running or cell.processes <= len(self._free)

    def finished(self, cell: Cell) -> Result | None:
        """What a training that ended just before this program did has left."""
        return of_log(self.folder / cell.key / LOG, cell.flags["steps"], cell.flags.get("until_loss"))

    def is_held(self, cell: Cell) -> bool:
        """Whether a process that an earlier program started is still at its end in the cell's folder."""
        folder = self.folder / cell.key
        if not folder.exists():
            return False
        lock = lock_of(folder)
        try:
            return not _take(lock)
        finally:
            os.close(lock)

    def start(self, cell: Cell) -> None:
        cell.check_file()
        folder = self.folder / cell.key
        resumed = folder.exists()
        folder.mkdir(exist_ok=True)
        slots, self._free = self._free[: cell.processes], self._free[cell.processes :]
        arguments = self.arguments(cell, folder)
        output = folder / OUTPUT
        said = output.stat().st_size if output.exists() else 0
        environment = {"OMP_NUM_THREADS": "1"}
        if self._device == "cuda":
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(slots)
        process = (
            self._forked(arguments, folder, environment)
            if cell.processes == 1
            else _torchrun(cell.processes, arguments, folder, environment)
        )
        self.running.append(Training(cell, folder, process, slots, time.monotonic(), resumed, said))

    def arguments(self, cell: Cell, folder: Path) -> list[str]:
        """Of train.py."""
        own = ["--run", str(folder), "--resume", "--keep", "1", "--sample-length", "0", "--device", self._device]
        if cell.is_compressed:  # whose checkpoints change what follows
            own.append("--no-checkpoint-on-signal")
        return [*cell.arguments, *own]

    def _forked(self, arguments: list[str], folder: Path, environment: dict[str, str]) -> BaseProcess:
        if self._context is None:
            self._context = server()
        process: BaseProcess = self._context.Process(target=train_here, args=(arguments, str(folder), environment))
        with without_ctrl_c():
            process.start()
        return process

    def ended(self) -> list[tuple[Training, Result | None]]:
        """Trainings that have ended since the last call; None: they were stopped before their end.

        Raises:
            Failed: one ended by an error.
        """
        over = [(training, code) for training in self.running if (code := training.ended_with()) is not None]
        for training, _ in over:
            self.running.remove(training)
            self._free += training.slots
        return [(training, self._result(training, code)) for training, code in over]

    def _result(self, training: Training, code: int) -> Result | None:
        result = self.finished(training.cell)
        training.cell.check_file()
        if result is None and not training.is_stopped:
            raise Failed(f"a training failed: {training.complaint(code)} ({training.folder / OUTPUT})", code=1)
        return result

    def forget(self, cell: Cell) -> None:
        """Removes the folder of a cell whose result is kept."""
        shutil.rmtree(self.folder / cell.key, ignore_errors=True)

    def forget_all_of(self, cells: Iterable[Cell]) -> None:
        """What a program that was killed after it had kept results did not remove."""
        for cell in cells:
            if (self.folder / cell.key).exists():
                self.forget(cell)

    def leave(self) -> None:
        """Removes the folder if no training is left in it."""
        with suppress(OSError):
            self.folder.rmdir()

    def stop(self) -> None:
        """Stops all trainings, and waits for them."""
        for training in self.running:
            training.stop()
        while any(training.ended_with() is None for training in self.running):
            time.sleep(POLL_SECONDS)


def _take(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _gpus() -> list[str]:
    """As CUDA_VISIBLE_DEVICES calls them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return given.split(",") if given else [str(index) for index in range(torch.cuda.device_count())]


def _torchrun(count: int, arguments: list[str], folder: Path, environment: dict[str, str]) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count),
               "--", str(EXAMPLE / "train.py"), *arguments]  # fmt: skip
    lock = lock_of(folder)
    try:
        _take(lock)  # for the program that takes the child's place, which has the same open file
        with (folder / OUTPUT).open("ab") as output, without_ctrl_c():
            return subprocess.Popen(
                command,
                env=os.environ | environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                preexec_fn=leave_group_as_child,
                pass_fds=(lock,),
            )
    finally:
        os.close(lock)
