"""The front of RowSign."""

from typing import Any, NoReturn

from torch import Tensor
from torch.optim.optimizer import ParamsT

from torchdion.mixed_precision import DionMixedPrecisionConfig
from torchdion.optimizer import Optimizer
from torchdion.options import Nonfinite


class RowSign(Optimizer):
    """Sign descent by rows.

    Args:
        params: as torch.optim takes them.
        lr: learning rate η.
        mu: decay of momentum and row scale in [0, 1).
        weight_decay: λ, decoupled.
    """

    algorithm = "row_sign"
    title = "torchdion.RowSign"

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.01,
        *,
        mu: float = 0.95,
        weight_decay: float | Tensor = 0.01,
        scalar_algorithm: str = "lion",
        maximize: bool = False,
        nonfinite: Nonfinite = "propagate",
        replicate_mesh: Any = None,
        outer_shard_mesh: Any = None,
        inner_shard_mesh: Any = None,
        replicate_mesh_grad_sync: bool = True,
        mixed_precision_config: DionMixedPrecisionConfig | None = None,
        **unknown: NoReturn,
    ) -> None:
        self._set_up(params, dict(locals()))
