"""What an optimizer counts of its steps."""

from typing import Any

from torch import Tensor

from torchdion import _C
from torchdion.state import is_capturing

# Counts that a device may still be computing: numbers or tensors of one.
_LAZY = ("skipped_steps", "nonfinite_entries", "columns_without_signal", "columns_in_margin")

NO_STEPS: dict[str, Any] = {
    **dict.fromkeys(("steps", *_LAZY, "batches", "workspace_bytes"), 0),
    "expected_traffic": {},
}
"""Before the first one."""


def count(counts: dict[str, Any], report: _C.Report) -> None:
    """Adds a step."""
    counts["steps"] += 1
    found = (report.skipped, report.nonfinite, report.without_signal, report.in_margin)
    for name, more in zip(_LAZY, found, strict=True):
        if not (isinstance(more, Tensor) and is_capturing(more)):  # a replay would not add to it
            if isinstance(more, Tensor) and isinstance(counts[name], Tensor):
                more = more.to(counts[name].device)
            counts[name] = counts[name] + more
    counts |= {name: getattr(report, name) for name in ("batches", "workspace_bytes", "expected_traffic")}


def as_numbers(counts: dict[str, Any]) -> dict[str, Any]:
    """Waits for the devices that are still counting."""
    return {**counts, **{name: int(counts[name]) for name in _LAZY}}
