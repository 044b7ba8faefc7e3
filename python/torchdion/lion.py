"""The front of Lion."""

from typing import Any, NoReturn

from torch import Tensor
from torch.optim.optimizer import ParamsT

from torchdion.mixed_precision import DionMixedPrecisionConfig
from torchdion.optimizer import Optimizer
from torchdion.options import Nonfinite, Owners


class Lion(Optimizer):
    r"""Lion: the sign of a momentum (arXiv 2302.06675, Algorithm 2), of all parameters.

    A drop-in for any ``torch.optim`` optimizer. Per step, entry by entry, with gradient G and momentum M:

    .. math::
        X = (1 - \eta\lambda) X - \eta \, \mathrm{sign}(\beta_1 M + (1 - \beta_1) G), \quad
        M = \beta_2 M + (1 - \beta_2) G

    Args:
        params, weight_decay, cautious_wd, maximize, capturable, nonfinite: as in :class:`torchdion.Dion`.
        lr: learning rate η; a float or a tensor of one element. The root mean square of an update is 1, so that η is
            three to ten times smaller than AdamW's. Of :func:`torchdion.param_groups`, whose factors count on it,
            0.01 is the base.
        betas: (β₁, β₂); None means (0.95, 0.98), those of the Dion paper.
        replicate_mesh, outer_shard_mesh, inner_shard_mesh, replicate_mesh_grad_sync, owners: as in
            :class:`torchdion.AdamW`.
        mixed_precision_config: dtypes of the state.

    Raises:
        TypeError, ValueError, NotImplementedError: as :class:`torchdion.Dion`.

    State of each parameter: ``momentum`` (its shape), ``step``. Parameters may be cut in any way.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(8, 2)
        >>> optimizer = Lion(model.parameters(), lr=1e-4)
        >>> model(torch.ones(4, 8)).square().sum().backward()
        >>> optimizer.step()
        >>> optimizer.state[model.weight]["momentum"].shape
        torch.Size([2, 8])
    """

    algorithm = "lion"
    title = "torchdion.Lion"

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-4,
        *,
        betas: tuple[float, float] | None = None,
        weight_decay: float | Tensor = 0.01,
        cautious_wd: bool = False,
        maximize: bool = False,
        capturable: bool = False,
        nonfinite: Nonfinite = "propagate",
        replicate_mesh: Any = None,
        outer_shard_mesh: Any = None,
        inner_shard_mesh: Any = None,
        replicate_mesh_grad_sync: bool = True,
        owners: Owners = "all",
        mixed_precision_config: DionMixedPrecisionConfig | None = None,
        **unknown: NoReturn,
    ) -> None:
        self._set_up(params, dict(locals()))
