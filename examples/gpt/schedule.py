"""The learning rate's shape over a run: warm-up, stable, decay (WSD)."""

from collections.abc import Callable, Sequence

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def warmup_stable_decay(steps: int, warmup: float, decay: float) -> Callable[[int], float]:
    """The factor on the learning rate at step 0 … steps - 1.

    It rises linearly over the first `warmup` share of the steps, and falls linearly over the last `decay`
    share, towards zero one step after the last.
    """
    rising, falling = round(warmup * steps), round(decay * steps)

    def factor(step: int) -> float:
        up = (step + 1) / rising if step < rising else 1.0
        left = max(0, steps - step)
        down = left / falling if left < falling else 1.0
        return min(up, down)

    return factor


def schedules(optimizers: Sequence[Optimizer], steps: int, warmup: float, decay: float) -> list[LambdaLR]:
    """One scheduler per optimizer, all of the same shape."""
    return [LambdaLR(optimizer, warmup_stable_decay(steps, warmup, decay)) for optimizer in optimizers]
