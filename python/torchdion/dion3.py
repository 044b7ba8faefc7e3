"""The front of Dion3."""

from typing import Any, NoReturn

from torch import Tensor
from torch.optim.optimizer import ParamsT

from torchdion.mixed_precision import DionMixedPrecisionConfig
from torchdion.optimizer import Optimizer
from torchdion.options import AdjustLr, NewtonSchulz, Nonfinite, Owners, Precision


class Dion3(Optimizer):
    r"""Dion3: Dion2 (arXiv 2512.16928) of rows, which are then normalized as NorMuon's (arXiv 2510.05491).

    A drop-in for any ``torch.optim`` optimizer. Parameters with two or more dimensions are matrices (a convolution is
    flattened to (out, rest)), whose rows are neurons; the others get ``scalar_algorithm``. Per step and m×n matrix X
    with gradient G, momentum M and the number v_i of each row, where K are the k = max(1, ⌈fraction · m⌉) rows of the
    largest L1 norms:

    .. math::
        B = M + G, \quad U = \mathrm{orthonormalize}(B_K), \quad M = B, \; M_K = \mu B_K

    .. math::
        v_i = \beta_2 v_i + (1 - \beta_2) \tfrac{1}{n} \textstyle\sum_j U_{ij}^2 \; (i \in K), \quad
        V_{ij} = U_{ij} / (\sqrt{v_i} + 10^{-8}), \quad
        X = (1 - \eta\lambda) X, \; X_K = X_K - \eta \sqrt{m/n} \, \tfrac{\|U\|}{\|V\|} V

    What is said of the choice and of layouts in :class:`torchdion.Dion2` holds here. The ``dion`` package calls it
    NorDion2 too, and ``ef_decay`` ``mu``.

    Args:
        params, betas, weight_decay, cautious_wd, epsilon, scalar_algorithm, maximize, capturable, nonfinite: as in
            :class:`torchdion.Dion`.
        lr: learning rate η; a float or a tensor of one element.
        fraction: share of the rows that is orthonormalized, in (0, 1].
        ef_decay: μ in [0, 1), by which rows of the momentum decay when they are chosen.
        muon_beta2: decay β₂ of the mean squares of rows, in [0, 1).
        newton_schulz, ns_steps, adjust_lr, precision, mixed_precision_config: as in :class:`torchdion.Muon`.
        replicate_mesh, outer_shard_mesh, inner_shard_mesh, replicate_mesh_grad_sync, owners: as in
            :class:`torchdion.Muon`.

    Raises:
        TypeError, ValueError, NotImplementedError: as :class:`torchdion.Dion`.

    State of each parameter: ``momentum`` (its shape), ``variance_neuron`` ([stack..., m, 1]), ``variance`` (AdamW),
    ``step``. State dicts of the ``dion`` package's Dion3 load.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 2))
        >>> optimizer = Dion3(model.parameters(), lr=0.02)
        >>> model(torch.ones(4, 8)).square().sum().backward()
        >>> optimizer.step()
        >>> optimizer.state[model[0].weight]["variance_neuron"].shape
        torch.Size([16, 1])
    """

    algorithm = "dion3"
    title = "torchdion.Dion3"
    exchanges = "the same of rows, with means of their squares"

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.02,
        *,
        fraction: float = 0.25,
        ef_decay: float = 0.95,
        muon_beta2: float = 0.95,
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
