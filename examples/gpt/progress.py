"""What a person sees of a run: a bar on a terminal, now and then a plain line elsewhere."""

import sys
from types import TracebackType

from tqdm import tqdm

LINES_PER_RUN = 20


class Progress:
    """Shows training steps from `done` to `steps`; nothing if not `shown`."""

    def __init__(self, done: int, steps: int, shown: bool = True) -> None:
        self._steps = steps
        self._shown = shown
        self._line_every = max(1, steps // LINES_PER_RUN)
        self._bar = tqdm(total=steps, initial=done, unit="step", disable=not (shown and sys.stderr.isatty()))

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:  # fmt: skip
        self._bar.close()

    def update(self, step: int, loss: float, tokens_per_second: float, optimizer_ms: float) -> None:
        speed = f"{tokens_per_second:,.0f} tokens/s, optimizer {optimizer_ms:.1f} ms"
        if not self._bar.disable:
            self._bar.set_postfix_str(f"loss {loss:.4f}, {speed}", refresh=False)
            self._bar.update(step - self._bar.n)
        elif step % self._line_every == 0 or step in (1, self._steps):
            self.say(f"step {step}/{self._steps}: loss {loss:.4f}, {speed}")

    def say(self, line: str) -> None:
        """Print a line without tearing the bar."""
        if self._shown:
            tqdm.write(line)
            sys.stdout.flush()
