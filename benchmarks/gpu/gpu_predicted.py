"""What a step should launch and take, beside what the profiler saw.

Rows of `kind` "predicted", of predicted.py or of a step recorded here, have `list`, `optimizer`, `state`, `name`, of
Dion `rank` and `precision`, and of all launches of that name `launches`, `bytes` and `operations`. The names are those
that kernel_names.py makes of what the profiler saw, by which they meet its rows of `kind` "kernel".
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
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
    *("list", "optimizer", "r", "state", "kernel", "launches", "predicted launches", "ms", "least ms", "ms / least"),
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


def steps_in(rows: Sequence[Row]) -> Iterator[Row]:
    """The labels of steps that may have been predicted: Dion's at the precision that is profiled, then the others'."""
    others = dict.fromkeys(row["optimizer"] for row in select(rows, kind="predicted") if "rank" not in row)
    for name in LISTS:
        for rank, state in product(RANKS, STATES):
            yield {"list": name, "optimizer": "Dion", "rank": rank, "state": state, "precision": "high"}
        for optimizer in others:
            yield {"list": name, "optimizer": optimizer, "state": "FP32"}


def compared(rows: Sequence[Row]) -> list[Row]:
    """Of each step that was predicted and profiled: what is in either, by the longest in time.

    Predicted are only this library's steps: its Muon is "Muon" there, and "torchdion.Muon" where torch's is measured.
    """
    machine = one(rows, kind="machine", program="profile")
    shown = []
    for labels in steps_in(rows):
        optimizer = labels["optimizer"] if "rank" in labels else f"torchdion.{labels['optimizer']}"
        predicted = {row["name"]: row for row in select(rows, kind="predicted", **labels)}
        seen = {row["kernel"]: row for row in select(rows, kind="kernel", **labels | {"optimizer": optimizer})}
        if predicted and seen:
            lines = [line(key, predicted.get(key), seen.get(key), machine) for key in {**predicted, **seen}]
            lines.sort(key=lambda row: -(row["ms"] or 0.0))
            known = {"list": labels["list"], "optimizer": optimizer, "r": labels.get("rank"), "state": labels["state"]}
            shown += [{**known, **row} for row in lines]
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
