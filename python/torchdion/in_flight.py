"""What a step leaves under way when it returns: it ends beside the next forward and backward pass."""

import atexit
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from torch.optim.optimizer import Optimizer

from torchdion import _C
from torchdion.stats import count_signal
from torchdion.words import front

_UNDER_WAY: "WeakSet[_C.InFlight]" = WeakSet()


@atexit.register
def _wait_for_all() -> None:
    """A process that ends would leave the other ranks waiting."""
    for in_flight in list(_UNDER_WAY):
        with suppress(Exception):  # there is no one to tell
            in_flight.wait()


class InFlightOptimizer(Optimizer):
    """An optimizer whose steps may leave something under way, which all methods that look at states wait for."""

    _broken: str | None  # why the parameters are no longer what any step leaves
    _counts: dict[str, Any]
    _in_flight: _C.InFlight | None = None  # of the last step

    def _leave(self, in_flight: _C.InFlight | None) -> None:
        self._in_flight = in_flight
        if in_flight is not None:
            _UNDER_WAY.add(in_flight)

    def _flush(self) -> None:
        """Waits for what is under way.

        Raises:
            RuntimeError: it failed; states are no longer what any step leaves.
        """
        in_flight = self._in_flight
        if in_flight is None:
            return
        try:
            report = in_flight.wait()
        except Exception:
            done = f"{in_flight.completed} of {in_flight.batches} batches"
            self._broken = f"what the last step had left in flight failed after {done}"
            self._in_flight = None
            raise
        if self._in_flight is in_flight:  # no other thread has waited as well
            self._in_flight = None
            count_signal(self._counts, report)

    def _refuse_if_broken(self) -> None:
        self._flush()
        if self._broken is not None:
            raise RuntimeError(f"{front()}: {self._broken}; load a checkpoint")
