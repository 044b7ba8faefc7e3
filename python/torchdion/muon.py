"""The front of Muon."""

from typing import Any, NoReturn

from torch import Tensor
from torch.optim.optimizer import ParamsT

from torchdion.mixed_precision import DionMixedPrecisionConfig
from torchdion.optimizer import Optimizer
from torchdion.options import AdjustLr, NewtonSchulz, Nonfinite, Owners, Precision


class Muon(Optimizer):
    r"""Muon: updates by the orthonormalized momentum (https://kellerjordan.github.io/posts/muon).

    A drop-in for any ``torch.optim`` optimizer: unlike torch's own it takes all parameters of a model. Those with two
    or more dimensions are matrices (a convolution is flattened to (out, rest)) and get Muon; the others get
    ``scalar_algorithm``. Per step and m×n matrix X with gradient G and momentum M:

    .. math::
        M = \mu M + G, \quad U = \mathrm{orthonormalize}(G + \mu M), \quad
        X = (1 - \eta\lambda) X - \eta \sqrt{m/n} \, U

    orthonormalize() divides by the Frobenius norm and takes ``ns_steps`` Newton–Schulz iterations, which bring singular
    values towards 1. A matrix of zeros stays zero.

    Args:
        params, betas, weight_decay, cautious_wd, scalar_algorithm, maximize, capturable, nonfinite: as in
            :class:`torchdion.Dion`.
        lr: learning rate η; a float or a tensor of one element.
        mu: momentum decay μ in [0, 1).
        nesterov: False: M itself is orthonormalized. None is the algorithm's own: True, False of groups under Dion.
        newton_schulz: "polar_express" (for each iteration the best polynomial there is, arXiv 2505.16932), "gram" (the
            same, evaluated on the Gram matrix of the shorter side: fewer operations where one side is at least 1.5
            times the other; in BF16 its polynomials leave 8% for rounding in place of 2%), "auto" (on GPUs "gram" where
            it has fewer operations, else "polar_express") or "jordan" (one polynomial for all iterations, as in
            torch.optim.Muon).
        ns_steps: Newton–Schulz iterations, 1 to 99.
        adjust_lr: the factor on η of an m×n matrix: "spectral_norm" (sqrt(m/n), Dion's), "rms_norm"
            (0.2 sqrt(max(m, n)), arXiv 2502.16982), "original" (sqrt(max(1, m/n))) or None (1).
        epsilon: AdamW's ε. Muon has none: it is scale-free.
        precision: of products of FP32 matrices. None is "medium": operands rounded to BF16, sums in FP32, as in
            torch.optim.Muon. "high" rounds to TF32 on GPUs, "highest" nothing. Matrices of FP64 compute in FP64.
        replicate_mesh: ranks whose gradients differ, as a DeviceMesh or a ProcessGroup: the optimizer averages over
            them. A momentum is each replica's own then; see ``synchronize_for_checkpoint()``.
        outer_shard_mesh, inner_shard_mesh, mixed_precision_config: as in :class:`torchdion.Dion`.
        replicate_mesh_grad_sync: False: gradients are averaged over replicate_mesh before step(), and its ranks only
            share the work. All of them take each step together, with gradients for the same matrices.
        owners: "shard": of each part of a parameter one rank of replicate_mesh keeps the state and updates it for all,
            which have the parameter whole; see :class:`torchdion.DistMuon`. Alike in all groups.

    Raises:
        TypeError, ValueError, NotImplementedError: as :class:`torchdion.Dion`.

    In a distributed job each matrix has an owner among the ranks that hold pieces or copies of it: pieces travel there
    and back, all-to-all, and no rank repeats what another one does. Copies are those of a DTensor's mesh (native HSDP,
    Replicate placements) and of a replicate_mesh; plain tensors under DistributedDataParallel need the latter, with
    replicate_mesh_grad_sync=False. Whatever the layout, the trajectory is that of one process.

    State of each parameter: ``momentum`` (its shape), ``variance`` (AdamW), ``step``. A state dict of
    ``torch.optim.Muon`` loads: its ``momentum_buffer`` is (1 − μ) times this momentum.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 2))
        >>> optimizer = Muon(model.parameters(), lr=0.02)
        >>> model(torch.ones(4, 8)).square().sum().backward()
        >>> optimizer.step()
        >>> optimizer.state[model[0].weight]["momentum"].shape
        torch.Size([16, 8])
    """

    algorithm = "muon"
    title = "torchdion.Muon"
    exchanges = "each rank owns some whole matrices and sends their updates back (replicate_mesh)"

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.02,
        *,
        mu: float = 0.95,
        nesterov: bool | None = None,
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
