"""The optimizers of the demo, each at a learning rate that was searched for it.

Final losses of 240 steps, seed 0, on Python 3.11's docstrings, in nats per token:

====================  =====  ======  =====  =====  =====  =====
torch.optim.AdamW at  0.001  0.0014  0.002  0.003  0.005  0.01
loss                  4.538  4.517   4.478  4.519  4.563  4.879
torchdion.Dion at            0.01    0.014  0.02   0.03
loss                         4.061   4.049  4.101  4.198
====================  =====  ======  =====  =====  =====  =====

Dion has a quarter of the rank, with what docs/guides/choosing.md finds for it; at full rank, with the defaults, it ends
at 4.074.

The rates of the others were not searched.
"""

from collections.abc import Callable

from torch import nn
from torch.optim import AdamW, Optimizer

import torchdion
from torchdion.optimizer import Optimizer as TorchdionOptimizer
from torchdion.table import ALGORITHMS

OPTIMIZERS = tuple(ALGORITHMS)
ADAMW_RATE = 2e-3
RATES = {"dion": 0.014, "demo": 1e-3, "lion": 1e-3, "adamw": ADAMW_RATE}
RATE = 0.02
"""Of all others."""
DION = {
    "rank_fraction": 0.25,
    "nesterov": True,
    "residual": "sign",
    "error_feedback": False,
}
BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.01
"""Of AdamW on all parameters, of ours on the matrices."""
BASELINE = "torch.optim.AdamW"


def ours(name: str, model: nn.Module) -> Optimizer:
    """An optimizer of OPTIMIZERS, as a user makes it."""
    optimizer_of: Callable[..., Optimizer] = TorchdionOptimizer.of(name)
    rate = RATES.get(name, RATE)
    if not ALGORITHMS[name].takes_matrices:
        return optimizer_of(model.parameters(), lr=rate, weight_decay=WEIGHT_DECAY)
    options = DION if name == "dion" else {}
    return optimizer_of(torchdion.param_groups(model, weight_decay=WEIGHT_DECAY), lr=rate, **options)


def adamw(model: nn.Module) -> Optimizer:
    """torch's."""
    return AdamW(model.parameters(), lr=ADAMW_RATE, betas=BETAS, weight_decay=WEIGHT_DECAY)
