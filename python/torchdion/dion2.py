"""The front of Dion2."""

from typing import Any, NoReturn

from torch import Tensor
from torch.optim.optimizer import ParamsT

from torchdion.mixed_precision import DionMixedPrecisionConfig
from torchdion.optimizer import Optimizer
from torchdion.options import AdjustLr, NewtonSchulz, Nonfinite, Owners, Precision, Select


class Dion2(Optimizer):
    r"""Dion2: of each momentum the slices of the largest norms are orthonormalized (arXiv 2512.16928).

    A drop-in for any ``torch.optim`` optimizer. Parameters with two or more dimensions are matrices (a convolution is
    flattened to (out, rest)); the others get ``scalar_algorithm``. Per step and m×n matrix X with gradient G and
    momentum M, where slices are rows or columns and K are those k = max(1, ⌈fraction · number of slices⌉) of the
    largest L1 norms:

    .. math::
        B = M + G, \quad U = \mathrm{orthonormalize}(B_K), \quad M = B, \; M_K = \mu B_K, \quad
        X = (1 - \eta\lambda) X, \; X_K = X_K - \eta \sqrt{m/n} \, U

    The choice is that of whole matrices, and the same on every layout: norms are summed in FP64 and compared by their
    first 24 bits, which no order of summation changes but next to a boundary; of equal ones the first are chosen. The
    host waits for none of it. So the trajectory is that of one process, unlike that of the ``dion`` package, where each
    shard chooses for itself.

    Args:
        params, betas, weight_decay, cautious_wd, epsilon, scalar_algorithm, maximize, capturable, nonfinite: as in
            :class:`torchdion.Dion`.
        lr: learning rate η; a float or a tensor of one element.
        fraction: share of the slices that is orthonormalized, in (0, 1].
        ef_decay: μ in [0, 1), by which slices of the momentum decay when they are chosen.
        select: what slices are: "rows", "columns" or "auto", those of the shorter side, rows if both are as long.
        newton_schulz, ns_steps, adjust_lr, precision, mixed_precision_config: as in :class:`torchdion.Muon`.
        replicate_mesh, outer_shard_mesh, inner_shard_mesh, replicate_mesh_grad_sync, owners: as in
            :class:`torchdion.Muon`.

    Raises:
        TypeError, ValueError, NotImplementedError: as :class:`torchdion.Dion`.

    In a distributed job norms travel, and the chosen slices go to an owner and back: of k slices each rank sends as
    many as it may have of them at most. Over ``replicate_mesh`` momenta are summed, and only slices come back.

    State of each parameter: ``momentum`` (its shape), ``variance`` (AdamW), ``step``. State dicts of the ``dion``
    package's Dion2 load.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 2))
        >>> optimizer = Dion2(model.parameters(), lr=0.02)
        >>> model(torch.ones(4, 8)).square().sum().backward()
        >>> optimizer.step()
        >>> optimizer.state[model[0].weight]["momentum"].shape
        torch.Size([16, 8])
    """

    algorithm = "dion2"
    title = "torchdion.Dion2"
    exchanges = "owners sum momenta, and send the slices that have the largest norms back (replicate_mesh)"

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.02,
        *,
        fraction: float = 0.25,
        ef_decay: float = 0.95,
        select: Select = "auto",
        betas: tuple[float, float] | None = None,
        weight_decay: float | Tensor = 0.01,
        cautious_wd: bool = False,
        epsilon: float = 1e-8,
        newton_schulz: NewtonSchulz = "auto",
        ns_steps: int = 5,
        adjust_lr: AdjustLr = "spectral_norm",
        scalar_algorithm: str = "lion",
        maximize: bool = False,
        capturable: bool = False,
        nonfinite: Nonfinite = "propagate",
        precision: Precision | None = None,
        replicate_mesh: Any = None,
        outer_shard_mesh: Any = None,
        inner_shard_mesh: Any = None,
        replicate_mesh_grad_sync: bool = True,
        owners: Owners = "all",
        mixed_precision_config: DionMixedPrecisionConfig | None = None,
        **unknown: NoReturn,
    ) -> None:
        self._set_up(params, dict(locals()))
