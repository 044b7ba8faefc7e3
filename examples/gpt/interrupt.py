"""Ctrl-C as a request: the step in progress is finished first."""

import signal
from collections.abc import Sequence
from types import FrameType, TracebackType


class Interrupt:
    """While entered, a first SIGINT or SIGTERM only sets `signal`.

    Args:
        ends: the signals of which a second one, after either, ends the process at once; the other is ignored.
    """

    CAUGHT = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, ends: Sequence[signal.Signals] = CAUGHT) -> None:
        self.signal: int | None = None
        self._ends = ends
        self._previous = {number: signal.getsignal(number) for number in self.CAUGHT}

    def __enter__(self) -> "Interrupt":
        for number in self._previous:
            signal.signal(number, self._request)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:  # fmt: skip
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        for caught in self.CAUGHT:
            signal.signal(caught, signal.SIG_DFL if caught in self._ends else signal.SIG_IGN)
        if signal.SIGINT in self._ends:
            signal.signal(signal.SIGINT, signal.default_int_handler)
