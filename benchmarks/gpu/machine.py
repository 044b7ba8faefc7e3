"""The GPU that is measured: its clock, its memory, its kernels, and what it does at most.

`--device cpu` is for checking these programs where there is no GPU: the wall's clock stands in for events, and what
only a GPU has (graphs, kernels, peaks of memory) is left out.
"""

import argparse
import gc
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))
from gpu_lists import LISTS
from measure import emit, seconds

LEAST_ROUNDS = 3


class Kernel(NamedTuple):
    """What ran on the GPU under one name."""

    name: str
    launches: int
    ms: float


class Rates(NamedTuple):
    """Operations per second of large square products, and bytes per second, read and written, of a copy."""

    tf32: float
    bf16: float
    fp64: float
    copy: float


class Machine:
    """A device, for at most so many seconds from now."""

    def __init__(self, device: str, time_limit: float) -> None:
        self.device = torch.device(device)
        self.is_gpu = self.device.type == "cuda"
        self.end = time.monotonic() + time_limit

    @property
    def name(self) -> str:
        return torch.cuda.get_device_name(self.device) if self.is_gpu else f"{platform.machine()} CPU"

    def synchronize(self) -> None:
        if self.is_gpu:
            torch.cuda.synchronize()

    def ms(self, run: Callable[[], object]) -> float:
        """Milliseconds of one call, by events; the device had nothing else to do."""
        if not self.is_gpu:
            return 1e3 * seconds(run)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        begin.record()
        run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end))

    def median_ms(self, run: Callable[[], object], rounds: int, budget_ms: float = 1000.0) -> tuple[float, int]:
        """The median of so many calls, and how many; three at least, fewer than asked for where they take too long."""
        times = [self.ms(run)]
        fits = int(budget_ms / max(times[0], 1e-6))
        times += [self.ms(run) for _ in range(min(rounds, max(LEAST_ROUNDS, fits)) - 1)]
        return statistics.median(times), len(times)

    def peak_mb(self, run: Callable[[], object]) -> float | None:
        """Memory that a call takes for itself."""
        if not self.is_gpu:
            return None
        self.synchronize()
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        self.synchronize()
        return (torch.cuda.max_memory_allocated() - held) / 1e6

    def kernels(self, run: Callable[[], object]) -> list[Kernel]:
        """What a call runs on the GPU, copies and fills included, by torch's profiler."""
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            run()
            self.synchronize()
        return on_device(profile.key_averages())

    def captured(self, step: Callable[[], object], warm_up: int) -> Callable[[], None]:
        """The replay of a CUDA graph of a step, after steps on a stream of its own, as torch asks for."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(warm_up):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return graph.replay

    def rates(self) -> Rates:
        """What the machine does now; torch's flag for TF32, of which torchdion takes no notice, is set for it alone."""
        size, numel = (8192, 1 << 28) if self.is_gpu else (256, 1 << 18)
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            tf32 = self._product(size, torch.float32)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before
        bf16, fp64 = self._product(size, torch.bfloat16), self._product(size // 2, torch.float64)
        source = torch.randn(numel, device=self.device)
        target = torch.empty_like(source)
        copy = 2 * source.nbytes / self._seconds(partial(target.copy_, source))
        return Rates(tf32, bf16, fp64, copy)

    def _product(self, size: int, dtype: torch.dtype) -> float:
        a, b = torch.randn(2, size, size, device=self.device, dtype=dtype)
        return 2 * size**3 / self._seconds(partial(torch.mm, a, b, out=torch.empty_like(a)))

    def _seconds(self, run: Callable[[], object]) -> float:
        for _ in range(2):
            run()
        return self.median_ms(run, 10, budget_ms=100)[0] / 1e3

    def attempt(self, labels: dict[str, Any], rows: Iterable[dict[str, Any]]) -> None:
        """Emits the rows; where something is in the way, the one that says what, and the program goes on.

        Args:
            labels: what all rows begin with.
            rows: a generator that measures: nothing of it runs once the time limit is over.
        """
        problem = None
        if time.monotonic() > self.end:
            rows, problem = (), "left out: the time limit was over"
        try:
            for row in rows:
                emit(labels | row)
        except torch.OutOfMemoryError:
            problem = "out of memory"
        except Exception as error:  # whatever one contender does, the others have their turn
            problem = (str(error).strip() or type(error).__name__).splitlines()[0]
        if problem:
            emit({**labels, "problem": problem})
        del rows  # with the tensors that a generator holds
        with suppress(RuntimeError):  # a context that a kernel has broken says so in every further row
            self.free()

    def free(self) -> None:
        if self.is_gpu:
            gc.collect()
            torch.cuda.synchronize()
            torch.cuda.empty_cache()


def on_device(events: Iterable[Any]) -> list[Kernel]:
    """The kernels among what torch's profiler has averaged: not the spans that record_function marks on the GPU too."""
    return [
        Kernel(event.key, event.count, event.self_device_time_total / 1e3)
        for event in events
        if event.device_type.name == "CUDA" and not event.is_user_annotation
    ]


def parser_of(description: str | None, lists: list[str], seconds: float) -> argparse.ArgumentParser:
    """The arguments that all these programs have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", nargs="+", choices=LISTS, default=lists, help="of matrices")
    parser.add_argument("--rounds", type=int, default=10, help="how often each contender is timed at most")
    parser.add_argument("--seconds", type=float, default=seconds, help="rows not begun by then are left out")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to check this program only")
    return parser


def open_machine(given: argparse.Namespace, program: str) -> Machine:
    """Ends the program in one sentence where the device is not there."""
    if given.device == "cuda" and not torch.cuda.is_available():
        print(f"benchmarks/gpu/{program}: needs a GPU that torch can use", file=sys.stderr)
        sys.exit(2)
    if given.device == "cpu":
        torch.set_num_threads(1)  # on a busy machine threads that wait for each other take 500 times as long
    torch.manual_seed(0)
    return Machine(given.device, given.seconds)
