"""The GPU that is measured: its clock, its memory, its kernels, and what it does at most.

`--device cpu` is for checking these programs where there is no GPU. `Host` is all that a CPU does otherwise: the wall's
clock stands in for events, a step for its graph, torch's operations for kernels.
"""

import argparse
import gc
import os
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
from cublas import Cublas, loaded_cublas
from gpu_lists import LISTS
from host_cublas import HostCublas
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
    """What measures a device, until a time that time.time() will show."""

    def __init__(self, end: float) -> None:
        self.end = end
        self.failures = 0  # of what was attempted

    device: torch.device
    name: str
    sizes: tuple[int, int]  # rows of the products, entries of the copy, by which rates are measured
    warm_up: float  # seconds before each

    def synchronize(self) -> None:
        raise NotImplementedError

    def ms(self, run: Callable[[], object], times: int = 1) -> float:
        """Milliseconds of so many calls; the device had nothing else to do."""
        raise NotImplementedError

    def peak_mb(self, run: Callable[[], object]) -> float | None:
        """Memory that a call takes for itself; None where nobody counts."""
        raise NotImplementedError

    def kernels(self, run: Callable[[], object]) -> list[Kernel]:
        """What a call runs on the device, copies and fills included, by torch's profiler."""
        raise NotImplementedError

    def captured(self, step: Callable[[], object], warm_up: int) -> Callable[[], object]:
        """The replay of a CUDA graph of a step."""
        raise NotImplementedError

    def marked(self, run: Callable[[], object]) -> None:
        """A call that a profiler around this process, started with its range off, is to look at."""
        raise NotImplementedError

    def cublas(self) -> Cublas:
        raise NotImplementedError

    def free(self) -> None:
        raise NotImplementedError

    def median_ms(self, run: Callable[[], object], rounds: int, budget_ms: float = 1000.0) -> tuple[float, int]:
        """The median of so many calls, and how many; three at least, fewer than asked for where they take too long."""
        times = [self.ms(run)]
        fits = int(budget_ms / max(times[0], 1e-6))
        times += [self.ms(run) for _ in range(min(rounds, max(LEAST_ROUNDS, fits)) - 1)]
        return statistics.median(times), len(times)

    def back_to_back_ms(self, run: Callable[[], object], rounds: int, budget_ms: float = 1000.0) -> tuple[float, int]:
        """What a call takes among many that follow each other without a wait, and how many there were."""
        fits = int(budget_ms / max(self.ms(run), 1e-6))
        times = max(LEAST_ROUNDS, min(3 * rounds, fits))
        return self.ms(run, times) / times, times

    def rates(self) -> Rates:
        """What the machine does now; torch's flag for TF32, of which torchdion takes no notice, is set for it alone."""
        size, numel = self.sizes
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
        """After so long that the clock has risen to where it stays."""
        end = time.monotonic() + self.warm_up
        run()
        while time.monotonic() < end:
            run()
            self.synchronize()
        return self.median_ms(run, 10, budget_ms=100)[0] / 1e3

    def attempt(self, labels: dict[str, Any], rows: Iterable[dict[str, Any]]) -> None:
        """Emits the rows; where something is in the way, the one that says what, and the program goes on.

        Args:
            labels: what all rows begin with.
            rows: a generator that measures: nothing of it runs once the time limit is over.
        """
        problem = None
        if time.time() > self.end:
            rows, problem = (), "left out: the time limit was over"
        try:
            for row in rows:
                emit(labels | row)
        except torch.OutOfMemoryError:
            problem = "out of memory"
            self.failures += 1
        except Exception as error:  # whatever one contender does, the others have their turn
            problem = (str(error).strip() or type(error).__name__).splitlines()[0]
            self.failures += 1
        if problem:
            emit({**labels, "problem": problem})
        del rows  # with the tensors that a generator holds
        with suppress(RuntimeError):  # a context that a kernel has broken says so in every further row
            self.free()

    def finish(self) -> int:
        """The exit status of a program: what the time limit left out is no failure of its own."""
        return 1 if self.failures else 0


class Gpu(Machine):
    device = torch.device("cuda")
    sizes = (8192, 1 << 28)
    warm_up = 0.3

    @property
    def name(self) -> str:  # type: ignore[override]
        return torch.cuda.get_device_name(self.device)

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def ms(self, run: Callable[[], object], times: int = 1) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        begin.record()
        for _ in range(times):
            run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end))

    def peak_mb(self, run: Callable[[], object]) -> float | None:
        self.synchronize()
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        self.synchronize()
        return (torch.cuda.max_memory_allocated() - held) / 1e6

    def kernels(self, run: Callable[[], object]) -> list[Kernel]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            run()
            self.synchronize()
        return on_device(profile.key_averages())

    def captured(self, step: Callable[[], object], warm_up: int) -> Callable[[], object]:
        """After steps on a stream of its own, as torch asks for."""
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

    def marked(self, run: Callable[[], object]) -> None:
        self.synchronize()
        torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
        run()
        self.synchronize()
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]

    def cublas(self) -> Cublas:
        torch.cuda.current_blas_handle()  # type: ignore[no-untyped-call]  # loads the library
        return Cublas(loaded_cublas(), torch.cuda.current_blas_handle)

    def free(self) -> None:
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


class Host(Machine):
    """A CPU, on which the programs are checked: its numbers say nothing of a GPU."""

    device = torch.device("cpu")
    sizes = (256, 1 << 18)
    warm_up = 0.0

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{platform.machine()} CPU"

    def synchronize(self) -> None:
        pass

    def ms(self, run: Callable[[], object], times: int = 1) -> float:
        return 1e3 * sum(seconds(run) for _ in range(times))

    def peak_mb(self, run: Callable[[], object]) -> float | None:
        run()
        return None

    def kernels(self, run: Callable[[], object]) -> list[Kernel]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            run()
        return [
            Kernel(event.key, event.count, event.self_cpu_time_total / 1e3)
            for event in profile.key_averages()
            if not event.is_user_annotation
        ]

    def captured(self, step: Callable[[], object], warm_up: int) -> Callable[[], object]:
        for _ in range(warm_up):
            step()
        return step

    def marked(self, run: Callable[[], object]) -> None:
        run()

    def cublas(self) -> Cublas:
        return Cublas(HostCublas(), lambda: 0)

    def free(self) -> None:
        pass


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
    parser.add_argument("--end", type=float, help="the same, as a time of time.time()")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to check this program only")
    return parser


def machine_row(machine: Machine, rates: Rates, **labels: str) -> dict[str, Any]:
    """Which device measured the rows of a program, with which torch, on which day."""
    known = {"device": machine.name, "torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}
    return {"kind": "machine", **labels, **known, **rates._asdict()}


def open_machine(given: argparse.Namespace, program: str) -> Machine:
    """Ends the program in one sentence where the device is not there."""
    if given.device == "cuda" and not torch.cuda.is_available():
        print(f"benchmarks/gpu/{program}: needs a GPU that torch can use", file=sys.stderr)
        sys.exit(2)
    if given.device == "cpu":
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # some show AMX and end who uses it
        torch.set_num_threads(1)  # on a busy machine threads that wait for each other take 500 times as long
    torch.manual_seed(0)
    end = given.end or time.time() + given.seconds
    return Gpu(end) if given.device == "cuda" else Host(end)
