"""The front of AdamW."""

from typing import Any, NoReturn

from torch import Tensor
from torch.optim.optimizer import ParamsT

from torchdion.mixed_precision import DionMixedPrecisionConfig
from torchdion.optimizer import Optimizer
from torchdion.options import Nonfinite, Owners


class AdamW(Optimizer):
    r"""AdamW (arXiv 1711.05101, Algorithm 2), of all parameters: torch.optim.AdamW's steps up to rounding.

    Per step t, entry by entry, with gradient G and moments M and V:

    .. math::
        M = \beta_1 M + (1 - \beta_1) G, \quad V = \beta_2 V + (1 - \beta_2) G^2, \quad
        X = (1 - \eta\lambda) X - \eta \frac{M / (1 - \beta_1^t)}{\sqrt{V / (1 - \beta_2^t)} + \varepsilon}

    Args:
        params, weight_decay, cautious_wd, maximize, capturable, nonfinite: as in :class:`torchdion.Dion`.
        lr: learning rate η; a float or a tensor of one element.
        betas: (β₁, β₂); None means (0.9, 0.95), usual for language models. torch.optim's default is (0.9, 0.999).
        epsilon: ε.
        replicate_mesh: ranks whose gradients differ, as a DeviceMesh or a ProcessGroup: the optimizer averages over
            them.
        outer_shard_mesh, inner_shard_mesh, mixed_precision_config: as in :class:`torchdion.Dion`.
        replicate_mesh_grad_sync: False: gradients are averaged over replicate_mesh before step().
        owners: "shard": of each part of a parameter one rank of replicate_mesh keeps the state and updates it for all,
            which have the parameter whole; see :class:`torchdion.DistAdamW`. Alike in all groups.

    Raises:
        TypeError, ValueError, NotImplementedError: as :class:`torchdion.Dion`.

    State of each parameter: ``momentum`` and ``variance`` (its shape), ``step``. Parameters may be cut in any way.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(8, 2)
        >>> optimizer = AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.999))
        >>> model(torch.ones(4, 8)).square().sum().backward()
        >>> optimizer.step()
        >>> sorted(optimizer.state[model.weight])
        ['momentum', 'step', 'variance']
    """

    algorithm = "adamw"
    title = "torchdion.AdamW"

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.002,
        *,
        betas: tuple[float, float] | None = None,
        weight_decay: float | Tensor = 0.01,
        cautious_wd: bool = False,
        epsilon: float = 1e-8,
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
