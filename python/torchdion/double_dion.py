"""The front of Double Dion."""

from typing import Any, NoReturn

from torch import Tensor
from torch.optim.optimizer import ParamsT

from torchdion.mixed_precision import DionMixedPrecisionConfig
from torchdion.optimizer import Optimizer
from torchdion.options import Nonfinite, Orientation, Orthonormalize, Precision


class DoubleDion(Optimizer):
    r"""Double Dion: replicas exchange factors of a small rank, updates have a larger one (arXiv 2504.05295, App. K).

    For replicas that are joined by slow networks. Per step and m×n matrix X with gradient G, two momenta and two right
    factors, of ranks r₁ < r₂:

    .. math::
        B_1 = \mu_1 M_1 + G, \quad P_1 = \mathrm{orthonormalize}(B_1 Q_1), \quad R_1 = B_1^\top P_1, \quad
        M_1 = B_1 - P_1 R_1^\top, \quad Q_1 = \mathrm{column\_normalize}(R_1)

    .. math::
        B_2 = M_2 + P_1 R_1^\top, \quad P_2 = \mathrm{orthonormalize}(B_2 Q_2), \quad R_2 = B_2^\top P_2, \quad
        M_2 = B_2 - (1 - \mu_2) P_2 R_2^\top, \quad Q_2 = \mathrm{column\_normalize}(R_2)

    .. math::
        X = (1 - \eta\lambda) X - \eta \sqrt{m/n} \, P_2 Q_2^\top

    Only P₁ and R₁, (m + n) r₁ elements, are averaged over ``replicate_mesh``; the second stage is alike on all
    replicas. M₁ is that of the paper divided by μ₁. On one process it is the same algorithm.

    Under ``delayed`` the second stage takes P₁ and R₁ of the step before. Until the next step, the states of matrices
    belong to what is in flight: ``state_dict()``, ``synchronize_for_checkpoint()``, every other method here that looks
    at them, and the end of the process wait for it, alone, and raise what has failed. M₂ has the product P₁R₁ᵀ by then,
    so that a run goes on from a checkpoint bit for bit, delayed or not.

    Args:
        params, maximize, capturable, nonfinite, precision, seed, mixed_precision_config: as in :class:`torchdion.Dion`.
        lr: learning rate η, before the shape factor; a float or a tensor of one element.
        mu: momentum decay μ₂ in [0, 1).
        replicate_mu: momentum decay μ₁ of each replica's own momentum, in [0, 1).
        rank_fraction: r₂ / min(m, n) in (0, 1].
        replicate_rank_fraction: r₁ / min(m, n) in (0, 1].
        delayed: a step updates by what replicas have exchanged since the step before, and returns before they exchange
            P₁ and R₁ of its own gradients: that goes on beside the next forward and backward pass, on one core or a
            stream of its own, over process groups of its own. See below.
        rank_multiple_of: both ranks are rounded up to a multiple of this, at most min(m, n).
        betas, weight_decay, cautious_wd, epsilon, orientation, orthonormalize, rcqr_oversample, scalar_algorithm: as in
            :class:`torchdion.Dion`.
        replicate_mesh: ranks whose gradients differ, as a DeviceMesh or a ProcessGroup. M₁ is each replica's own then;
            see ``synchronize_for_checkpoint()``.
        outer_shard_mesh, inner_shard_mesh, replicate_mesh_grad_sync: as in :class:`torchdion.Dion`.

    Raises:
        TypeError, ValueError, NotImplementedError: as :class:`torchdion.Dion`.

    State of each parameter: ``momentum`` (M₂, its shape), ``Q`` (Q₂), ``replicate_momentum`` (M₁, its shape),
    ``replicate_Q`` (Q₁), ``variance`` (AdamW), ``step``.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 2))
        >>> optimizer = DoubleDion(model.parameters(), lr=0.01, rank_fraction=0.5, replicate_rank_fraction=0.125)
        >>> model(torch.ones(4, 8)).square().sum().backward()
        >>> optimizer.step()
        >>> state = optimizer.state[model[0].weight]
        >>> state["Q"].shape, state["replicate_Q"].shape
        (torch.Size([16, 4]), torch.Size([16, 1]))
    """

    algorithm = "double_dion"
    title = "torchdion.DoubleDion"
    exchanges = "replicas exchange P and R of a smaller rank (replicate_mesh)"

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.01,
        *,
        mu: float = 0.95,
        replicate_mu: float = 0.999,
        betas: tuple[float, float] | None = None,
        weight_decay: float | Tensor = 0.01,
        cautious_wd: bool = False,
        epsilon: float = 1e-8,
        rank_fraction: float = 0.25,
        replicate_rank_fraction: float = 1 / 128,
        delayed: bool = False,
        rank_multiple_of: int = 1,
        orientation: Orientation = "right",
        orthonormalize: Orthonormalize = "auto",
        rcqr_oversample: float = 1.25,
        scalar_algorithm: str = "lion",
        maximize: bool = False,
        capturable: bool = False,
        nonfinite: Nonfinite = "propagate",
        precision: Precision | None = None,
        seed: int = 0,
        replicate_mesh: Any = None,
        outer_shard_mesh: Any = None,
        inner_shard_mesh: Any = None,
        replicate_mesh_grad_sync: bool = True,
        mixed_precision_config: DionMixedPrecisionConfig | None = None,
        **unknown: NoReturn,
    ) -> None:
        self._set_up(params, dict(locals()))
