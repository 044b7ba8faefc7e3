"""State and peak temporary memory of a step on the matrices of a GPT, from the process's resident set.

    python benchmarks/memory.py

For each rank one JSON line: the state's elements over m·n + rows·r, and the highest the resident set rises during a
step that already has its state, over the bytes of the parameters. Linux only (/proc).
"""

import ctypes
import gc
import resource
from pathlib import Path
from typing import Any

import torch
from matrices import gpt_shapes, gradients, parameters
from measure import emit, table

import torchdion

STATUS = Path("/proc/self/status")


def resident(field: str) -> int:
    """Bytes of the resident set: "VmRSS" now, "VmHWM" the highest since reset_peak()."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def reset_peak() -> None:
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # what an earlier step freed must not hide what this one takes
    Path("/proc/self/clear_refs").write_text("5")


def benchmark(fraction: float) -> dict[str, Any]:
    shapes = gpt_shapes()
    params = parameters(shapes)
    for param, gradient in zip(params, gradients(shapes, "flat"), strict=True):
        param.grad = gradient
    optimizer = torchdion.Dion(params, rank_fraction=fraction)
    optimizer.step()
    reset_peak()
    before = resident("VmRSS")
    optimizer.step()
    rise = resident("VmHWM") - before
    bytes_of_parameters = sum(param.numel() * param.element_size() for param in params)
    exact = sum(m * n + m * round(fraction * min(m, n)) for m, n in shapes)
    elements = sum(state["momentum"].numel() + state["Q"].numel() for state in optimizer.state.values())
    return emit(
        {
            "rank": f"{fraction:g} d",
            "state / (mn + mr)": elements / exact,
            "temporary / parameters": rise / bytes_of_parameters,
            "workspace / parameters": optimizer.stats()["workspace_bytes"] / bytes_of_parameters,
            "largest matrix / parameters": max(m * n for m, n in shapes) * 4 / bytes_of_parameters,
            "peak of the process in MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }
    )


if __name__ == "__main__":
    torch.manual_seed(0)
    rows = [benchmark(fraction) for fraction in (1.0, 0.25, 0.0625)]
    print(table(rows, list(rows[0])))
