"""What an optimizer counts of its steps."""

from typing import Any

from torch import Tensor
from torch.optim.optimizer import Optimizer

from torchdion import _C
from torchdion.layouts import Layouts
from torchdion.parameters import parameters_by_algorithm
from torchdion.state import is_capturing, state_bytes
from torchdion.words import speaking

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
    _add(counts, "skipped_steps", report.skipped)
    _add(counts, "nonfinite_entries", report.nonfinite)
    count_signal(counts, report)
    counts |= {name: getattr(report, name) for name in ("batches", "workspace_bytes", "expected_traffic")}


def count_signal(counts: dict[str, Any], report: _C.Report) -> None:
    """Adds the columns of a step's factors, or of what it had left in flight."""
    _add(counts, "columns_without_signal", report.without_signal)
    _add(counts, "columns_in_margin", report.in_margin)


def _add(counts: dict[str, Any], name: str, more: Any) -> None:
    if isinstance(more, Tensor) and is_capturing(more):
        return  # a replay would not add to it
    if isinstance(more, Tensor) and isinstance(counts[name], Tensor):
        more = more.to(counts[name].device)
    counts[name] = counts[name] + more


def as_numbers(counts: dict[str, Any]) -> dict[str, Any]:
    """Waits for the devices that are still counting."""
    return {**counts, **{name: int(counts[name]) for name in _LAZY}}


class CountedOptimizer(Optimizer):
    """An optimizer that tells what it has done."""

    _counts: dict[str, Any]
    _layouts: Layouts

    def _flush(self) -> None:
        """Nothing is under way."""

    @speaking
    def stats(self) -> dict[str, Any]:
        """What the optimizer has done and what it holds.

        Returns:
            A dictionary of

            - ``steps``: calls of step() by this object; neither this nor what is counted in steps counts replays of a
              graph;
            - ``skipped_steps``, and ``nonfinite_entries`` under the ``nonfinite`` policies other than "propagate";
            - ``columns_without_signal``: columns of P that were zero or not well above rounding, which is where a plain
              Cholesky factorization fails, and became exactly zero: where momenta have a smaller rank than P has
              columns. They are those of the matrices that this rank orthonormalized; ranks that share the rows of P
              all count them;
            - ``columns_in_margin``: those of them that were longer than their rounding, but not by the factor that
              counts as signal: there, runs on different layouts may part (docs/reference/limits.md);
            - ``batches`` and ``workspace_bytes`` of the last step;
            - ``parameters`` by algorithm, ``state_bytes`` on this rank;
            - ``traffic``: what this object sent, by name of the mesh dimension, kind of collective and unit:
              ``stats()["traffic"]["tp"]["all_reduce"]["bytes"]``. Elements are those of the full tensor on this rank; a
              sum that is scattered and gathered again counts them as ``reduce_scatter``, its gathering the calls and
              bytes of ``completion``; ``agreement`` has those of the flags on which ranks agree before a step;
            - ``expected_traffic``: the elements that the last step had to send by the formulas of the paper's Table 2,
              by mesh dimension.

        Waits for what the last step of a delayed :class:`torchdion.DoubleDion` has left in flight.
        """
        self._flush()
        return {
            **as_numbers(self._counts),
            "parameters": parameters_by_algorithm(self.param_groups),
            "state_bytes": state_bytes(self.state),
            "traffic": self._layouts.axes.traffic(),
        }
