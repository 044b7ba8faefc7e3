"""How many ranks this machine has room for: too many would take it along, whatever time limit they have."""

import os
from collections.abc import Iterator
from pathlib import Path

BYTES_OF_A_RANK = {"fork": 200 * 2**20, "spawn": 500 * 2**20}
"""Of memory of its own, by how it is started: a forked one was measured to have 94 MiB with the small model, and 160
MiB with its share of what all have; a spawned one imports torch for itself."""

RANKS_OF_A_CORE = 16
"""Beyond it they wait for each other at every collective, longer than any time limit is worth."""


def ranks_that_fit(start_method: str) -> int:
    """By free memory and cores."""
    by_memory = free_bytes() // BYTES_OF_A_RANK[start_method]
    return max(1, min(by_memory, len(os.sched_getaffinity(0)) * RANKS_OF_A_CORE))


def free_bytes(root: Path = Path("/")) -> int:
    """What the kernel can give without swapping, and no more than this process's control groups may still take."""
    lines = (line.split() for line in (root / "proc/meminfo").read_text().splitlines())
    free = next(int(number) * 1024 for name, number, *_ in lines if name == "MemAvailable:")
    for folder, limit, used in _control_groups(root):
        try:
            allowed, taken = ((folder / name).read_text().strip() for name in (limit, used))
            cached = _cached_bytes((folder / "memory.stat").read_text())
        except OSError:
            continue
        if allowed.isdigit():
            free = min(free, max(0, int(allowed) - int(taken) + cached))
    return free


def _control_groups(root: Path) -> Iterator[tuple[Path, str, str]]:
    """The folders of this process's control groups and of those around them; their files of the limit and the use."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, files = root / "sys/fs/cgroup", ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            base, files = root / "sys/fs/cgroup/memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        folder = base / path.lstrip("/")
        yield from ((parent, *files) for parent in (folder, *folder.parents) if parent.is_relative_to(base))


def _cached_bytes(statistics: str) -> int:
    """Of files, which count as used until something else needs the memory."""
    numbers = dict(line.split()[:2] for line in statistics.splitlines())
    return max(
        sum(int(numbers.get(f"{prefix}{name}", 0)) for name in ("active_file", "inactive_file"))
        for prefix in ("", "total_")  # of version 1, with what lies below
    )
