"""Links of a limited rate between ranks of one machine: each rank in a network namespace of its own.

    with joined(2) as links:            # a namespace per rank, all joined by a bridge in one more
        links.throttle(100e6)           # bits per second, both directions of each rank's link
        ...                             # in the process of a rank: links.enter(rank)

Addresses and devices live inside the namespaces alone, and go with them. They are removed when the block is left, also
by an exception or a signal; what a run that was killed has left behind is removed by the next one. Linux, root,
iproute2.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples" / "gpt"))
from errors import Problem

PREFIX = "torchdion-links"
DEVICE = "rank"  # the end of its link that a rank has; the other is a port of the bridge
BRIDGE = "bridge"
CLONE_NEWNET = 0x40000000
BURST_SECONDS = 0.002  # what may pass at once after a pause: little beside a step, enough for a late timer
SMALLEST_BURST = 65536  # bytes: a timer that is a few milliseconds late costs no throughput at 100 Mbit/s
QUEUE = "50ms"  # what waits longer is dropped


@dataclass(frozen=True)
class Links:
    """Those of one process, whose namespaces bear its name."""

    ranks: int
    owner: str

    def namespace(self, member: int | str) -> str:
        """Of a rank, or BRIDGE."""
        return f"{PREFIX}-{self.owner}-{member}"

    def throttle(self, rate: float | None) -> None:
        """Limits every link to `rate` bits per second, headers included, in each direction; None: no longer."""
        discipline = "noqueue"
        if rate is not None:
            burst = max(SMALLEST_BURST, int(rate / 8 * BURST_SECONDS))
            discipline = f"tbf rate {rate:.0f}bit burst {burst} latency {QUEUE}"
        for rank in range(self.ranks):
            for namespace, device in ((self.namespace(rank), DEVICE), (self.namespace(BRIDGE), f"port{rank}")):
                run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", *discipline.split())

    def enter(self, rank: int) -> None:
        """Moves this thread, and those that it starts from now on, into the rank's namespace."""
        libc = ctypes.CDLL(None, use_errno=True)  # os.setns() came with Python 3.12
        with open(f"/run/netns/{self.namespace(rank)}") as namespace:
            if libc.setns(namespace.fileno(), CLONE_NEWNET):
                error = ctypes.get_errno()
                raise OSError(error, os.strerror(error), namespace.name)

    def make(self) -> None:
        bridge = self.namespace(BRIDGE)
        run("ip", "netns", "add", bridge)
        run("ip", "-n", bridge, "link", "add", BRIDGE, "up", "type", "bridge")
        for rank in range(self.ranks):
            own, port = self.namespace(rank), f"port{rank}"
            run("ip", "netns", "add", own)
            run("ip", "-n", own, "link", "add", DEVICE, "type", "veth", "peer", "name", port, "netns", bridge)
            run("ip", "-n", bridge, "link", "set", port, "master", BRIDGE, "up")
            run("ip", "-n", own, "address", "add", f"10.0.0.{rank + 1}/24", "dev", DEVICE)
            run("ip", "-n", own, "link", "set", DEVICE, "up")

    def remove(self) -> None:
        for name in namespaces():
            if name.startswith(self.namespace("")):
                remove(name)


@contextmanager
def joined(ranks: int) -> Iterator[Links]:
    """Links between so many ranks, as long as the block lasts.

    Raises:
        Problem: this process may not make them, or lacks what it takes; a signal asked it to end.
    """
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            raise Problem(
                f"network namespaces need `ip` and `tc` (Debian's package iproute2); `{program}` was not found"
            )
    remove_leftovers()
    links = Links(ranks, f"{os.getpid()}-{started(os.getpid())}")
    with first_signal_raises():
        try:
            links.make()
            yield links
        finally:
            ignore_signals()
            links.remove()


def sent_bytes() -> int:
    """What this process's namespace has put on its link, headers included."""
    line = next(line for line in Path("/proc/self/net/dev").read_text().splitlines() if f"{DEVICE}:" in line)
    return int(line.split()[9])


def run(*command: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        reason = " ".join(result.stderr.split())
        raise Problem(f"`{' '.join(command)}` failed ({reason}); links of limited rates need Linux and root's rights")
    return result.stdout


def namespaces() -> list[str]:
    """The names of all that this module has made, by whichever process."""
    return [line.split()[0] for line in run("ip", "netns", "list").splitlines() if line.startswith(f"{PREFIX}-")]


def remove(namespace: str) -> None:
    """With all devices in it; another process may have been faster."""
    subprocess.run(["ip", "netns", "delete", namespace], stderr=subprocess.DEVNULL)


def remove_leftovers() -> None:
    """The namespaces of processes that are no more."""
    for name in namespaces():
        process, start, _ = name.removeprefix(f"{PREFIX}-").split("-")
        if started(int(process)) != start:
            remove(name)


def started(process: int) -> str | None:
    """When it did, in the kernel's ticks: with the id, the name of a process that no later one has."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return stat.rpartition(")")[2].split()[19]


ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def first_signal_raises() -> Iterator[None]:
    """Where a signal asks the process to end, it raises; further ones are ignored, for cleaning up to be complete."""

    def end(number: int, frame: FrameType | None) -> None:
        ignore_signals()
        raise Problem(f"ended by {signal.Signals(number).name}", code=128 + number)

    previous = {number: signal.signal(number, end) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def ignore_signals() -> None:
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
