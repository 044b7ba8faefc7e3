"""The front of DistAdamW."""

from typing import Any

from torch import Tensor
from torch.optim.optimizer import ParamsT

from torchdion.adamw import AdamW
from torchdion.owners import SharesStates, sharing


class DistAdamW(SharesStates, AdamW):
    r"""AdamW whose states are shared out among the ranks of a job that all have the whole model (nanochat's DistAdamW).

    :class:`torchdion.AdamW` with ``owners="shard"``, the second stage of ZeRO (arXiv 1910.02054). Each rank owns some
    entries of dimension 0 of every parameter. A step reduce-scatters gradients to their owners, which update moments
    and weights, and all-gathers the weights, bucket after bucket of 25 MiB, while other buckets are on their way. So N
    ranks keep P (1 + 2 / N) numbers of P parameters and their two moments each, in place of 3 P, and send what an
    all-reduce of the gradients sends. The trajectory is that of one process.

    Args:
        params, lr: as of :class:`torchdion.AdamW`.
        replicate_mesh: the ranks that share the states out, as a DeviceMesh or a ProcessGroup. None: all of the job; on
            one process the states are whole.
        options: all other arguments of :class:`torchdion.AdamW`. With ``replicate_mesh_grad_sync=False`` gradients are
            averaged before the step (by DistributedDataParallel, say), which sends the weights alone.

    Raises:
        TypeError, ValueError, NotImplementedError: as :class:`torchdion.AdamW`.
        ValueError: a parameter that is a DTensor.

    State of each parameter: ``momentum`` and ``variance``, of the entries that this rank owns, and ``step``.
    ``state_dict()`` has tensors of the whole shape for ``torch.distributed.checkpoint``, which moves them to other
    numbers of ranks; ``whole_state_dict()`` has the values of all ranks.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(8, 2)
        >>> optimizer = DistAdamW(model.parameters(), lr=1e-3, betas=(0.8, 0.95), epsilon=1e-10)  # nanochat's
        >>> model(torch.ones(4, 8)).square().sum().backward()
        >>> optimizer.step()
    """

    title = "torchdion.DistAdamW"
    exchanges = "each rank owns some entries and their moments (replicate_mesh; parameters that nothing cuts)"

    def __init__(self, params: ParamsT, lr: float | Tensor = 0.002, *, replicate_mesh: Any = None, **options: Any):
        super().__init__(params, lr, **sharing(replicate_mesh, options))
