"""What a step should launch and take, beside what the profiler saw.

Rows of `kind` "predicted", of predicted.py or of a step recorded here, have `list`, `rank`, `state`, `name`, and of all
launches of that name `launches`, `bytes` and `operations`. The names are those that kernel_names.py makes of what the
profiler saw, by which they meet its rows of `kind` "kernel".
"""

from collections.abc import Callable, Sequence
from typing import Any

from gpu_lists import LISTS, RANKS, STATES
from kernel_names import KERNELS_OF_PRODUCTS
from rows import Row, one, ratio, select

RATES = {
    **{f"cuBLAS {arithmetic}": arithmetic.lower() for arithmetic in ("TF32", "BF16", "FP64")},
    **{name: arithmetic.lower() for name, arithmetic in KERNELS_OF_PRODUCTS.items()},
}
SUMMED = ("launches", "bytes", "operations")
COLUMNS = (
    *("list", "r", "state", "kernel", "launches", "predicted launches", "ms", "least ms", "ms / least"),
    *("MB", "GFLOP"),
)
Step = Callable[[], object]


def recorded_rows(launches_of: Callable[[Step], Sequence[dict[str, Any]]], step: Step) -> list[Row]:
    """One row for each name, in the order of first appearance, of what a recorder says of a step.

    Args:
        launches_of: as torchdion._C.launches_of: a dict for each distinct launch, and one, without "launches", for
            allocations.
    """
    sums: dict[str, Row] = {}
    for launch in launches_of(step):
        if "launches" in launch:
            name = launch["name"]
            row = sums.setdefault(name, {"kind": "predicted", "name": name, **dict.fromkeys(SUMMED, 0)})
            for key in SUMMED:
                row[key] += launch[key]
    return list(sums.values())


def least_ms(row: Row, machine: Row) -> float | None:
    """The longer of a kernel's bytes and operations, at the rates that a machine had."""
    if not machine:
        return None
    rate = RATES.get(row["name"])
    arithmetic = row["operations"] / machine[rate] if rate else 0.0
    return float(1e3 * max(arithmetic, row["bytes"] / machine["copy"]))


def compared(rows: Sequence[Row]) -> list[Row]:
    """Of each list, rank and state that was predicted and profiled: what is in either, by the longest in time."""
    machine = one(rows, kind="machine", program="profile")
    shown = []
    for name in LISTS:
        for rank in RANKS:
            for state in STATES:
                labels = {"list": name, "rank": rank, "state": state}
                predicted = {row["name"]: row for row in select(rows, kind="predicted", **labels)}
                seen = {row["kernel"]: row for row in select(rows, kind="kernel", optimizer="Dion", **labels)}
                if predicted and seen:
                    lines = [line(key, predicted.get(key), seen.get(key), machine) for key in {**predicted, **seen}]
                    lines.sort(key=lambda row: -(row["ms"] or 0.0))
                    shown += [{"list": name, "r": rank, "state": state, **row} for row in lines]
    return shown


def line(kernel: str, predicted: Row | None, seen: Row | None, machine: Row) -> Row:
    least = least_ms(predicted, machine) if predicted else None
    ms = seen["ms"] if seen else None
    return {
        "kernel": kernel,
        "launches": seen["launches"] if seen else None,
        "predicted launches": predicted["launches"] if predicted else None,
        "ms": ms,
        "least ms": least,
        "ms / least": ratio(ms, least),
        "MB": predicted["bytes"] / 1e6 if predicted else None,
        "GFLOP": predicted["operations"] / 1e9 if predicted else None,
    }
