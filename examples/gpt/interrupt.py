"""Ctrl-C as a request: the step in progress is finished first."""

import signal
from collections.abc import Sequence
from types import FrameType, TracebackType


class Interrupt:
    """While entered, a first SIGINT or SIGTERM only sets `signal`; a second ends the process at once."""

    CAUGHT = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, caught: Sequence[signal.Signals] = CAUGHT) -> None:
        self.signal: int | None = None
        self._previous = {number: signal.getsignal(number) for number in caught}

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
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
