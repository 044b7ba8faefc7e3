"""The front of DistMuon."""

from typing import Any

from torch import Tensor
from torch.optim.optimizer import ParamsT

from torchdion.muon import Muon
from torchdion.owners import SharesStates, sharing


class DistMuon(SharesStates, Muon):
    r"""Muon whose momenta are shared out among the ranks of a job that all have the whole model (nanochat's DistMuon).

    :class:`torchdion.Muon` with ``owners="shard"``: each matrix has one owner, chosen so that all ranks have as much to
    do. A step reduce-scatters gradients to the owners, which update and orthonormalize momenta, and all-gathers the
    updated weights, bucket after bucket of 25 MiB, while other buckets are on their way. So N ranks keep P (1 + 1 / N)
    numbers of P parameters and momenta. Parameters that are no matrices are shared out too, entry by entry. The
    trajectory is that of one process.

    Args:
        params, lr: as of :class:`torchdion.Muon`.
        replicate_mesh: as of :class:`torchdion.DistAdamW`.
        options: all other arguments of :class:`torchdion.Muon`. With ``replicate_mesh_grad_sync=False`` gradients are
            averaged before the step (by DistributedDataParallel, say), which sends the weights alone. nanochat's
            variant has ``newton_schulz="jordan"``, ``adjust_lr="original"`` and ``weight_decay=0``.

    Raises:
        TypeError, ValueError, NotImplementedError: as :class:`torchdion.Muon`.
        ValueError: a parameter that is a DTensor.

    State of each parameter: ``momentum``, of what this rank owns, ``variance`` (AdamW), ``step``. State dicts are
    as those of :class:`torchdion.DistAdamW`.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(8, 2)
        >>> optimizer = DistMuon(model.parameters(), lr=0.02)
        >>> model(torch.ones(4, 8)).square().sum().backward()
        >>> optimizer.step()
    """

    title = "torchdion.DistMuon"
    exchanges = "each rank owns some whole matrices and their momenta (replicate_mesh; parameters that nothing cuts)"

    def __init__(self, params: ParamsT, lr: float | Tensor = 0.02, *, replicate_mesh: Any = None, **options: Any):
        super().__init__(params, lr, **sharing(replicate_mesh, options))
