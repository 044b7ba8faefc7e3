"""What every benchmark here does alike: interleaved timing, the machine's GEMM rate, JSON lines and a table.

A time by itself says little on a shared machine, so each round times every contender once, and the rate of a large
matrix product beside them; results are ratios of medians within one run.
"""

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

SQUARE = 2048  # of the product that measures the machine's rate


def seconds(run: Callable[[], object]) -> float:
    """The wall-clock time of one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


class GemmRate:
    """Floating-point operations per second of an FP32 product of two large square matrices."""

    def __init__(self) -> None:
        self.operands = torch.randn(2, SQUARE, SQUARE)
        self.product = torch.empty(SQUARE, SQUARE)
        self.measure()

    def measure(self) -> float:
        return 2 * SQUARE**3 / seconds(lambda: torch.mm(self.operands[0], self.operands[1], out=self.product))


def interleaved(
    contenders: Mapping[str, Callable[[], object]], rounds: int, before_each: Callable[[int], object]
) -> tuple[dict[str, float], float]:
    """The median seconds of each contender, and the median GEMM rate, over rounds that run each of them once.

    Args:
        contenders: name → what to time; each has been warmed up.
        rounds: how often each is timed.
        before_each: called with the round right before each, outside the timing.
    """
    rate = GemmRate()
    rates: list[float] = []
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for index in range(rounds):
        for name, run in contenders.items():
            rates.append(rate.measure())
            before_each(index)
            times[name].append(seconds(run))
    return {name: statistics.median(values) for name, values in times.items()}, statistics.median(rates)


def line_of(row: dict[str, Any]) -> str:
    """A row as one line of JSON, numbers to six digits."""
    return json.dumps({k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in row.items()})


def emit(row: dict[str, Any]) -> dict[str, Any]:
    """Prints a row as one line of JSON and returns it."""
    print(line_of(row), flush=True)
    return row


def table(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> str:
    """The rows as a Markdown table, numbers to three digits at least."""

    def cell(value: Any) -> str:
        if isinstance(value, float):
            return f"{value:.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"
        return "" if value is None else str(value)

    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    lines += ["| " + " | ".join(cell(row.get(column)) for column in columns) + " |" for row in rows]
    return "\n".join(lines)
