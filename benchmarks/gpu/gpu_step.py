"""The time of one optimizer step on a GPU against the machine's limits and against other optimizers.

    python benchmarks/gpu/gpu_step.py [--list 120m 1.3b 3b] [--rounds 10]

One JSON line per list of matrices, optimizer and dtype of the state, then a table. Per row:

    ms             the median of CUDA events around a step, in rounds that run each contender once
    roofline       of Dion: over what the machine needs at least, the longer of arithmetic (8mnr + 6.5mr² + 13/6 r³ for
                   each matrix, at the rate of an 8192³ TF32 product) and traffic (momentum read three times and written
                   twice, weights read and written, at the bandwidth of a copy), both measured in this run
    AdamW, Muon    the step of torch.optim.AdamW(fused=True) and of torch.optim.Muon over this one
    dion package   that of microsoft/dion's Dion over this one, where it can be imported
    launches       kernels of a step, by torch's profiler
    first          the first step over a steady one
    peak_mb        memory that a step takes beside parameters, gradients and state
"""

import argparse
import gc
import importlib
import importlib.util
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn import Parameter
from torch.optim import Optimizer

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))
from matrices import Shape, gpt_shapes, roofline_flops
from measure import emit, table

import torchdion

LISTS: dict[str, Callable[[], list[Shape]]] = {
    "tiny": partial(gpt_shapes, 2, 64),
    "120m": partial(gpt_shapes, 12, 768),
    "1.3b": partial(gpt_shapes, 24, 2048),
    "3b": partial(gpt_shapes, 28, 3072),
}
RANKS = {"r = d": 1.0, "r = d/4": 1 / 4, "r = d/16": 1 / 16}
STATES = {"FP32": torch.float32, "BF16": torch.bfloat16}
WARM_UP = 3


class Clock:
    """Milliseconds of a call, by CUDA events; nothing else waits for the device."""

    def __init__(self) -> None:
        self.begin, self.end = (torch.Event("cuda", enable_timing=True) for _ in range(2))

    def ms(self, run: Callable[[], object]) -> float:
        torch.cuda.synchronize()
        self.begin.record()
        run()
        self.end.record()
        self.end.synchronize()
        return float(self.begin.elapsed_time(self.end))


def machine(clock: Clock) -> dict[str, float]:
    """What the GPU does at most: operations and bytes per second."""
    size, rates = 8192, {}
    for name, dtype in (("tf32", torch.float32), ("bf16", torch.bfloat16)):
        a, b = torch.randn(2, size, size, device="cuda", dtype=dtype)
        torch.backends.cuda.matmul.allow_tf32 = True  # of this measurement; torchdion does not look at it
        times = [clock.ms(partial(torch.mm, a, b)) for _ in range(12)]
        rates[name] = 2 * size**3 / (statistics.median(times[2:]) / 1e3)
    torch.backends.cuda.matmul.allow_tf32 = False
    source, target = torch.empty(2, 1 << 28, device="cuda")
    times = [clock.ms(partial(target.copy_, source)) for _ in range(12)]
    rates["bytes"] = 2 * source.nbytes / (statistics.median(times[2:]) / 1e3)
    return rates


def at_least_ms(shapes: list[Shape], fraction: float, state: torch.dtype, rates: dict[str, float]) -> float:
    numel = sum(m * n for m, n in shapes)
    traffic = numel * (5 * state.itemsize + 2 * torch.float32.itemsize + torch.float32.itemsize)  # M, X, G
    return 1e3 * max(roofline_flops(shapes, fraction) / rates["tf32"], traffic / rates["bytes"])


def contenders(fraction: float, state: torch.dtype) -> dict[str, Callable[[list[Parameter]], Optimizer]]:
    config = torchdion.DionMixedPrecisionConfig(momentum_dtype=state, Q_dtype=state)
    made: dict[str, Callable[[list[Parameter]], Optimizer]] = {
        "Dion": partial(torchdion.Dion, lr=1e-3, rank_fraction=fraction, mixed_precision_config=config),
        "AdamW": partial(torch.optim.AdamW, lr=1e-3, fused=True),
        "Muon": partial(torch.optim.Muon, lr=1e-3),
    }
    if importlib.util.find_spec("dion"):
        package = importlib.import_module("dion")
        made["dion package"] = partial(package.Dion, lr=1e-3, rank_fraction=fraction)
    return made


def launches(step: Callable[[], object]) -> int:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    return sum(event.count for event in profile.key_averages() if "CUDA" in str(event.device_type))


def benchmark(name: str, rank: str, state: str, rounds: int, clock: Clock, rates: dict[str, float]) -> dict[str, Any]:
    shapes = LISTS[name]()
    median: dict[str, float] = {}
    row: dict[str, Any] = {"list": name, "rank": rank, "state": state}
    for contender, make in contenders(RANKS[rank], STATES[state]).items():  # one at a time: the lists fill the memory
        params = [Parameter(torch.randn(shape, device="cuda") * 0.02) for shape in shapes]
        for param in params:
            param.grad = torch.randn_like(param)
        optimizer = make(params)
        first = clock.ms(optimizer.step)
        for _ in range(WARM_UP):
            optimizer.step()
        torch.cuda.synchronize()
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        median[contender] = statistics.median(clock.ms(optimizer.step) for _ in range(rounds))
        if contender == "Dion":
            row["peak_mb"] = (torch.cuda.max_memory_allocated() - held) / 1e6
            row["launches"] = launches(optimizer.step)
            row["first"] = first / median[contender]
        del optimizer, params
        gc.collect()
        torch.cuda.empty_cache()
    row["ms"] = median["Dion"]
    row["roofline"] = median["Dion"] / at_least_ms(shapes, RANKS[rank], STATES[state], rates)
    row |= {contender: time / median["Dion"] for contender, time in median.items() if contender != "Dion"}
    row |= {"device": torch.cuda.get_device_name(), "tflops": rates["tf32"] / 1e12, "gb_s": rates["bytes"] / 1e9}
    return emit(row)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", nargs="+", choices=LISTS, default=["120m", "1.3b", "3b"])
    parser.add_argument("--rank", nargs="+", choices=RANKS, default=list(RANKS))
    parser.add_argument("--state", nargs="+", choices=STATES, default=list(STATES))
    parser.add_argument("--rounds", type=int, default=10, help="steps timed for each optimizer")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        print("benchmarks/gpu/gpu_step.py: needs a GPU that torch can use", file=sys.stderr)
        return 2
    torch.manual_seed(0)
    clock = Clock()
    rates = machine(clock)
    rows = [
        benchmark(name, rank, state, given.rounds, clock, rates)
        for name in given.list
        for rank in given.rank
        for state in given.state
    ]
    columns = ("list", "rank", "state", "ms", "roofline", "AdamW", "Muon", "dion package", "launches", "first")
    print(table(rows, columns))
    return 0


if __name__ == "__main__":
    sys.exit(main())
