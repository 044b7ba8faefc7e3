"""compare.py as programs for tests: run to its end, or under way and sent signals."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from checkpoint import saved

from .studies import SMALL, written

COMPARE = Path(__file__).parents[5] / "examples" / "gpt" / "compare.py"
FIGURES = 'figures = ["losses", "curves", "ranks", "rates", "costs"]'
# Ten trainings that any signal finds with checkpoints.
CHECKPOINTS = (
    SMALL.replace("seeds = 3", f"seeds = 2\n{FIGURES}")
    .replace("widen = 3", "widen = 0")
    .replace("[common]", "[common]\ncheckpoint_every = 2")
)


def command(*arguments: object) -> list[str]:
    return [sys.executable, str(COMPARE), *map(str, arguments)]


def compare(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), cwd=cwd, capture_output=True, text=True, timeout=240, check=False)


class Running:
    """compare.py in a process group of its own, as a shell starts it."""

    def __init__(self, text: str, folder: Path) -> None:
        self.arguments = written(folder, text), "--out", folder / "out"
        self.out = folder / "out"
        self.process = subprocess.Popen(
            command(*self.arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    def end(self, number: signal.Signals) -> tuple[str, str]:
        """Sends the signal, a SIGINT to the whole group, as a terminal does; what was said then."""
        (os.killpg if number == signal.SIGINT else os.kill)(self.process.pid, number)
        output, errors = self.process.communicate(timeout=90)
        if number == signal.SIGKILL:
            assert self.process.returncode == -signal.SIGKILL
        else:
            assert (self.process.returncode, errors) == (128 + number, "")
            assert "the same command goes on" in output
        return output, errors


Start = Callable[[str, Path], Running]


def any_checkpoint(folder: Path) -> bool:
    return any(saved(training) for training in (folder / "unfinished").glob("*"))


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def processes_that_name(folder: Path) -> list[str]:
    """Processes that have a file of the folder open."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(str(folder) in os.readlink(file) for file in (process / "fd").iterdir()):
                found.append(process.name)
        except OSError:
            continue
    return found
