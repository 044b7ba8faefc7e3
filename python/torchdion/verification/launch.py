"""Processes on this machine, one a rank, that are gone when the call returns, whatever ends it.

They are forked from a process that has imported torch (or, for CUDA, start anew), have one thread each, and meet at a
store that the caller keeps on the loopback device. What they write goes to files without names. So nothing is left
over. `verify` calls launch(), which raises; the tests call run(), which returns what became of each rank.
"""

import os
import pickle
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing import connection, get_context
from multiprocessing.process import BaseProcess
from typing import Any

from torchdion.torch_versions import TCPStore, import_dynamo
from torchdion.verification.rank import File, Job, Outcome, live
from torchdion.verification.transport import Transport

LAST_LINES = 12
KERNEL_SECONDS = 5.0
POLL_SECONDS = 0.05  # at most, between looks at ranks whose end nobody reports because their children live on


class RanksFailed(Exception):
    """A rank died, raised, or still ran at the time limit; the text says which."""


class Terminated(BaseException):
    """By SIGTERM."""


class Rank:
    """A process, and the files to which it writes."""

    def __init__(self, number: int, job: Job) -> None:
        self.files = (File(), File(), File())
        context: Any = get_context(job.transport.start_method)
        self.process: BaseProcess = context.Process(target=live, args=(number, job, *self.files), name=f"rank {number}")

    def outcome(self) -> Outcome:
        """So far; of a rank that has ended, its last."""
        output, result, stack = (file.read() for file in self.files)
        code = self.process.exitcode
        if code is not None and code >= 0 and result:  # a pickle that is whole
            outcome: Outcome = pickle.loads(result)
            if outcome.kind == "raised" or code == 0:
                return outcome._replace(output=output.decode(errors="replace"))
        if code is None:
            kind, value = "ran", None
        else:
            kind, value = "died", f"died of {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
        return Outcome(kind, value, stack.decode(errors="replace"), output=output.decode(errors="replace"))

    def has_failed(self) -> bool:
        """It has ended, and not as one that returned."""
        code = self.process.exitcode
        return code is not None and (code != 0 or self.files[1].is_empty())

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.process.pid or 0, number)

    def kill(self) -> None:
        """With whatever it has started."""
        if self.process.pid is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()  # also before it leads a group

    def close(self) -> None:
        """Once it is killed; what the kernel takes long to end is not waited for."""
        if self.process.pid is not None:
            self.process.join(KERNEL_SECONDS)
        for file in self.files:
            file.content.close()


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
    outcomes = run(body, world_size, arguments, time_limit, transport)
    first = first_failure(outcomes)
    if first is None:
        return pickle.loads(outcomes[0].value)
    kind = outcomes[first].kind
    if kind == "ran":
        raise RanksFailed(_still_running(outcomes, time_limit))
    how = "raised an error" if kind == "raised" else outcomes[first].value
    raise RanksFailed(f"rank {first} {how}, and all were ended; {_last_words(first, outcomes[first])}")


def run(
    body: Callable[..., Any],
    world_size: int,
    arguments: tuple[Any, ...],
    time_limit: float,
    transport: Transport = Transport(),  # noqa: B008  frozen
    grace: float = 0.0,
) -> list[Outcome]:
    """What became of each rank.

    Args:
        grace: seconds that the others have, after one rank has failed, to end by themselves.

    Raises:
        RanksFailed: a rank could not be started within `time_limit` seconds.
    """
    import_dynamo()
    ranks: list[Rank] = []
    deadline = time.monotonic() + time_limit
    with socket.create_server(("127.0.0.1", 0), backlog=world_size) as meeting, _sigterm_unwinds():
        job = Job(body, arguments, world_size, time_limit, transport, meeting.getsockname(), os.getpid())
        try:
            for number in range(world_size):
                _start(number, job, ranks)
                if time.monotonic() >= deadline:
                    raise RanksFailed(f"{number + 1} of {world_size} ranks were started in {time_limit:g} s, and ended")
            store = _store(meeting, job)  # after the forks, which would lack its thread
            _wait(ranks, deadline, grace)
            outcomes = [rank.outcome() for rank in ranks]
            del store
            return outcomes
        finally:
            for rank in ranks:
                rank.kill()
            for rank in ranks:
                rank.close()


def first_failure(outcomes: list[Outcome]) -> int | None:
    """The rank that failed first. One that dies makes others raise, and one that raises makes others wait."""
    for rank, outcome in enumerate(outcomes):
        if outcome.kind == "died":
            return rank
    raised = [(outcome.time, rank) for rank, outcome in enumerate(outcomes) if outcome.kind == "raised"]
    running = [rank for rank, outcome in enumerate(outcomes) if outcome.kind == "ran"]
    return min(raised)[1] if raised else running[0] if running else None


def _start(number: int, job: Job, ranks: list[Rank]) -> None:
    try:
        ranks.append(Rank(number, job))
        ranks[number].process.start()
    except OSError as error:
        raise RanksFailed(f"rank {number} could not be started, and all were ended: {error}") from error


def _store(meeting: socket.socket, job: Job) -> TCPStore:
    """It outlives every rank: what a rank waits for does not depend on which other one has died."""
    host, port = job.meeting
    limit = timedelta(seconds=job.time_limit)
    listening = os.dup(meeting.fileno())
    return TCPStore(host, port, job.world_size, True, timeout=limit, wait_for_workers=False, master_listen_fd=listening)


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


def _wait(ranks: list[Rank], deadline: float, grace: float) -> None:
    """Until all have ended, the grace after the first failure is over, or the time is, when all write their stacks."""
    failed, running = False, list(ranks)
    while running and time.monotonic() < deadline:
        sentinels = [rank.process.sentinel for rank in running]
        connection.wait(sentinels, max(0.0, min(POLL_SECONDS, deadline - time.monotonic())))
        running = [rank for rank in running if rank.process.exitcode is None]
        if not failed and any(rank.has_failed() for rank in ranks):
            failed, deadline = True, min(deadline, time.monotonic() + grace)
    if running and not failed:
        for rank in running:
            rank.send(signal.SIGUSR1)
        time.sleep(0.2)


def _last_words(rank: int, outcome: Outcome) -> str:
    lines = [*outcome.output.splitlines(), *outcome.traceback.splitlines()][-LAST_LINES:]
    return "\n".join([f"rank {rank} said:", *lines]) if lines else f"rank {rank} said nothing"


def _still_running(outcomes: list[Outcome], time_limit: float) -> str:
    running = [rank for rank, outcome in enumerate(outcomes) if outcome.kind == "ran"]
    numbers = ", ".join(map(str, running))
    lines = [f"still running at the time limit of {time_limit:g} s, and all were ended: ranks {numbers}"]
    for rank in running:
        innermost = outcomes[rank].traceback.splitlines()[1 : LAST_LINES + 1]
        lines += [f"rank {rank} was in:", *innermost]
    return "\n".join(lines)
