"""One command of a part: ended at its time with all that it started, its lines kept as they come."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

GRACE = 4.0  # seconds from the request to end to its enforcement
Line = Callable[[str], None]


def run(command: list[str], environment: dict[str, str], folder: Path, seconds: float, line: Line) -> tuple[int, bool]:
    """The exit status of a command, and whether it was stopped at its time.

    An exception, of a signal's handler too, ends it.

    Args:
        folder: where it runs.
        line: called with each whole line that it writes, to either stream.
    """
    with ExitStack() as until_started:
        until_started.enter_context(_postponed(signal.SIGTERM))
        try:
            child = _started(command, environment, folder)
        except OSError as error:
            line(f"{command[0]}: {error.strerror}")
            return 127, False
        reader = threading.Thread(target=_read, args=(child, line), daemon=True)
        stopped = False
        try:
            until_started.close()
            reader.start()
            child.wait(seconds)
        except subprocess.TimeoutExpired:
            stopped = True
        finally:
            _end(child)
    reader.join(GRACE)  # one that left the group may still hold the pipe
    return child.returncode, stopped


def _started(command: list[str], environment: dict[str, str], folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        preexec_fn=os.setpgrp,  # to be ended with all that it starts, also by whoever ends this session
    )


@contextmanager
def _postponed(number: signal.Signals) -> Iterator[None]:
    """Lets this program's handler of a signal wait; blocking it would not, as another thread may receive it."""
    arrived = False

    def note(*_: object) -> None:
        nonlocal arrived
        arrived = True

    before = signal.signal(number, note)
    try:
        yield
    finally:
        signal.signal(number, before)
        if arrived:
            signal.raise_signal(number)


def _read(child: "subprocess.Popen[str]", line: Line) -> None:
    assert child.stdout is not None
    with suppress(ValueError):  # closed at the end of the program
        for text in child.stdout:
            line(text.rstrip("\n"))


def _end(child: "subprocess.Popen[str]") -> None:
    """What is left of the group, politely first."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, sent)
        with suppress(subprocess.TimeoutExpired):
            child.wait(GRACE)
            if not _group_exists(child.pid, GRACE if sent == signal.SIGTERM else 0.0):
                return


def _group_exists(group: int, seconds: float) -> bool:
    """Whether any process of it is left after at most so long."""
    end = time.monotonic() + seconds
    while True:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        if time.monotonic() >= end:
            return True
        time.sleep(0.02)


def row_of(line: str) -> dict[str, object] | None:
    """The row that a line is, or nothing."""
    if not line.startswith("{"):
        return None
    try:
        row = json.loads(line)
    except json.JSONDecodeError:
        return None
    return row if isinstance(row, dict) else None
