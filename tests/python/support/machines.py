"""Machines of a cluster, played by this one: each has a network namespace, a host name and a process table of its own.

They know each other as node1, node2, … and are joined through eth0. Linux, root, iproute2, util-linux.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from links import DEVICE, Links, joined, run

ROOT = Path(__file__).resolve().parents[3]
INTERFACE = "eth0"
# Process 1 of the machine: what it starts last takes its place.
BOOT = 'hostname "$1"; mount --bind "$2" /etc/hosts; ip link set lo up; exec sh -c "$3"'


class Machine:
    """Runs one command at a time; its output, errors included, is that of all commands so far."""

    def __init__(self, links: Links, number: int, folder: Path) -> None:
        self.name = f"node{number + 1}"
        self._namespace = links.namespace(number)
        self._hosts = folder / f"{self.name}.hosts"
        self._output = folder / f"{self.name}.txt"
        self._process: subprocess.Popen[bytes] | None = None
        for change in (("down",), ("name", INTERFACE)):
            run("ip", "-n", self._namespace, "link", "set", DEVICE, *change)
        run("ip", "-n", self._namespace, "link", "set", INTERFACE, "up")
        self.know({f"node{each + 1}": f"10.0.0.{each + 1}" for each in range(links.ranks)})

    def know(self, addresses: dict[str, str]) -> None:
        """What the machine's /etc/hosts says."""
        lines = [f"{address} {name}" for name, address in {"localhost": "127.0.0.1", **addresses}.items()]
        self._hosts.write_text("\n".join(lines) + "\n")

    def command(self, line: str) -> list[str]:
        """What starts a shell's command line on the machine. The machine lives as long as it."""
        own = ["unshare", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        boot = ["sh", "-ec", BOOT, "sh", self.name, str(self._hosts), line]
        return ["ip", "netns", "exec", self._namespace, *own, *boot]

    def start(self, line: str) -> None:
        """Begins a command line in the repository's root."""
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                self.command(line), cwd=ROOT, env=environment(), stdout=output, stderr=subprocess.STDOUT
            )

    def wait(self, seconds: float) -> int:
        """Until the command has ended; returns what it exits with."""
        assert self._process is not None
        return self._process.wait(seconds)

    def crash(self) -> None:
        """Ends all of the machine's processes at once; the kernel closes their connections."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def output(self) -> str:
        return self._output.read_text() if self._output.exists() else ""


@contextmanager
def machines(count: int, folder: Path) -> Iterator[list[Machine]]:
    """So many of them, without a process when the block is left."""
    with joined(count) as links:
        found = [Machine(links, number, folder) for number in range(count)]
        try:
            yield found
        finally:
            for machine in found:
                machine.crash()


def environment() -> dict[str, str]:
    """That of the commands: this Python and its torchrun come first, and each process has one thread."""
    python = Path(sys.executable).parent
    path = os.pathsep.join([str(ROOT / "python"), *filter(None, [os.environ.get("PYTHONPATH")])])
    own = {"PATH": f"{python}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return os.environ | own


def wait_until(holds: Callable[[], bool], seconds: float, what: Callable[[], str]) -> None:
    """Raises an AssertionError with `what()` where it does not come true in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


def ask_to_end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM for the first process of a machine, of which `process` holds the command()."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for child in children:
        os.kill(int(child), signal.SIGTERM)
