"""How many ranks this machine has room for: too many would take it along, whatever time limit they have."""

import os
from pathlib import Path

BYTES_OF_A_RANK = 200 * 2**20
"""Of memory of its own: measured are 94 MiB with the small model, and 160 MiB with its share of what all have."""

RANKS_OF_A_CORE = 16
"""Beyond it they wait for each other at every collective, longer than any time limit is worth."""


def ranks_that_fit() -> int:
    """By free memory and cores."""
    return max(1, min(free_bytes() // BYTES_OF_A_RANK, len(os.sched_getaffinity(0)) * RANKS_OF_A_CORE))


def free_bytes(root: Path = Path("/")) -> int:
    """What the kernel can give without swapping, and no more than this process's control group may still take."""
    lines = (line.split() for line in (root / "proc/meminfo").read_text().splitlines())
    free = next(int(number) * 1024 for name, number, *_ in lines if name == "MemAvailable:")
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            allowed, taken = ((root / "sys/fs/cgroup" / name).read_text().strip() for name in (limit, used))
        except OSError:
            continue
        if allowed.isdigit():
            free = min(free, max(0, int(allowed) - int(taken)))
    return free
