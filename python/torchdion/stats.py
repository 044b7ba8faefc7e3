"""What an optimizer counts of its steps."""

from typing import Any

from torchdion.core_optimizer import CoreOptimizer
from torchdion.parameters import parameters_by_algorithm
from torchdion.state import state_bytes
from torchdion.words import speaking

# Counts that a device may still be computing: numbers or tensors of one.
_LAZY = ("skipped_steps", "nonfinite_entries", "columns_without_signal", "columns_in_margin")


class CountedOptimizer(CoreOptimizer):
    """An optimizer that tells what it has done."""

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
        counts = self._core.counts
        return {
            **counts,
            **{name: int(counts[name]) for name in _LAZY},  # waits for the devices that are still counting
            "parameters": parameters_by_algorithm(self.param_groups),
            "state_bytes": state_bytes(self.state),
            "traffic": self._layouts.axes.traffic(),
        }
