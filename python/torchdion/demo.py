"""The front of DeMo."""

from typing import Any, NoReturn

from torch import Tensor
from torch.optim.optimizer import ParamsT

from torchdion.mixed_precision import DionMixedPrecisionConfig
from torchdion.optimizer import Optimizer
from torchdion.options import Nonfinite, Precision


class DeMo(Optimizer):
    r"""DeMo: decoupled momentum, of which replicas exchange the largest cosine coefficients (arXiv 2411.19870).

    A baseline for training over slow networks. Matrices are cut into chunks of s×s from their first entry on, smaller
    ones at their ends. Per step and m×n matrix X with gradient G and momentum M:

    .. math::
        B = \mu M + G, \quad S = \text{the } k \text{ largest coefficients of each chunk of } \mathrm{DCT}(B), \quad
        M = B - \mathrm{DCT}^{-1}(S)

    .. math::
        U = \mathrm{DCT}^{-1}(\text{mean of } S \text{ over replicas}), \quad
        X = (1 - \eta\lambda) X - \eta \, \mathrm{sign}(U)

    A coefficient's mean is that of the replicas which sent it. Of equal magnitudes the first are taken. Places and
    values are gathered, 2k numbers of each chunk and replica.

    Args:
        params, betas, weight_decay, cautious_wd, epsilon, scalar_algorithm, maximize, capturable, nonfinite: as in
            :class:`torchdion.Dion`.
        lr: learning rate η; a float or a tensor of one element.
        mu: momentum decay μ in [0, 1).
        chunk_size: s, 1 to 1024.
        top_k: k; of chunks with fewer entries all are exchanged. The paper compares at s = 2k.
        precision: of the products that transform FP32 matrices. None is "high".
        replicate_mesh: ranks whose gradients differ, as a DeviceMesh or a ProcessGroup.
        outer_shard_mesh, inner_shard_mesh, replicate_mesh_grad_sync, mixed_precision_config: as in
            :class:`torchdion.Dion`.

    Raises:
        TypeError, ValueError, NotImplementedError: as :class:`torchdion.Dion`.

    Momenta are each replica's own, and unlike those of Dion no run on one process has their mean:
    ``synchronize_for_checkpoint()`` gives each replica the mean, from which a run goes on, saved or not.

    Shards that are cut between chunks transform their own; others send matrices whole to an owner and back.

    State of each parameter: ``momentum`` (its shape), ``variance`` (AdamW), ``step``.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 2))
        >>> optimizer = DeMo(model.parameters(), lr=0.001, chunk_size=8, top_k=4)
        >>> model(torch.ones(4, 8)).square().sum().backward()
        >>> optimizer.step()
        >>> sorted(optimizer.state[model[0].weight])
        ['momentum', 'step']
    """

    algorithm = "demo"
    title = "torchdion.DeMo"
    exchanges = "replicas gather each other's largest cosine coefficients (replicate_mesh)"

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.001,
        *,
        mu: float = 0.999,
        chunk_size: int = 64,
        top_k: int = 32,
        betas: tuple[float, float] | None = None,
        weight_decay: float | Tensor = 0.01,
        cautious_wd: bool = False,
        epsilon: float = 1e-8,
        scalar_algorithm: str = "lion",
        maximize: bool = False,
        capturable: bool = False,
        nonfinite: Nonfinite = "propagate",
        precision: Precision | None = None,
        replicate_mesh: Any = None,
        outer_shard_mesh: Any = None,
        inner_shard_mesh: Any = None,
        replicate_mesh_grad_sync: bool = True,
        mixed_precision_config: DionMixedPrecisionConfig | None = None,
        **unknown: NoReturn,
    ) -> None:
        self._set_up(params, dict(locals()))
