"""DistributedDataParallel with compressed data parallelism: a hook that leaves the optimizer's gradients local."""

import gc
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from torchdion.by_cpu import goes_by_cpu, sum_over
from torchdion.optimizer import Optimizer
from torchdion.replicas import replica_group

_checked: WeakSet[Optimizer] = WeakSet()


def ddp_comm_hook(optimizer: Optimizer, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
    """Leaves to an optimizer with a ``replicate_mesh`` the averaging of its parameters; averages all other gradients.

    Without it DistributedDataParallel averages whole gradients first, and nothing is left to compress. With it the
    optimizer's gradients stay this rank's own, also where the gradient is accumulated under ``no_sync()``, and
    ``step()`` averages each once: (m + n) r numbers of an m×n matrix, the whole gradient of what is no matrix. The
    latter waits for the step too, because a clipping in between multiplies it by another number on each rank; averaged
    after that, the replicas still agree. Parameters of other optimizers are averaged as without a hook, bit for bit;
    clip them by a norm of their own.

    Args:
        optimizer: whose ``replicate_mesh`` has the ranks of the model's process group.
        bucket: DistributedDataParallel's.

    Raises:
        ValueError: at the first backward pass, an optimizer that does not average over just these ranks.

    Example::

        model = torch.nn.parallel.DistributedDataParallel(model)
        optimizer = torchdion.Dion(torchdion.param_groups(model), replicate_mesh=mesh)
        model.register_comm_hook(optimizer, torchdion.ddp_comm_hook)
    """
    group = _group_of(optimizer)
    own = {param for members in optimizer.param_groups for param in members["params"]}
    buffer: Tensor = bucket.buffer()
    gradients = bucket.gradients()
    rest = [gradient for gradient, param in zip(gradients, bucket.parameters(), strict=True) if param not in own]
    if not rest:
        return _done(buffer)
    packed = buffer if len(rest) == len(gradients) else torch.cat([gradient.flatten() for gradient in rest])
    packed.div_(group.size())  # before the sum, as without a hook, so that half precision does not overflow

    def unpack(averaged: Future[list[Tensor]] | None = None) -> Tensor:
        if packed is not buffer:
            for gradient, piece in zip(rest, torch.split(packed, [g.numel() for g in rest]), strict=True):
                gradient.copy_(piece.view(gradient.shape))
        return buffer

    if goes_by_cpu(group, packed.device.type):
        sum_over(group, packed)
        return _done(unpack())
    work = dist.all_reduce(packed, group=group, async_op=True)
    assert work is not None
    averaged: Future[Tensor] = work.get_future().then(unpack)
    return averaged


def _done(buffer: Tensor) -> Future[Tensor]:
    """On a GPU, who waits for it waits for its stream; a CPU has none to name."""
    done: Future[Tensor] = Future(devices=[buffer.device] if buffer.is_cuda else None)
    done.set_result(buffer)
    return done


def _group_of(optimizer: Optimizer) -> dist.ProcessGroup:
    """The group over which the optimizer averages, which must be the model's."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            "torchdion.ddp_comm_hook: the hook's state must be an optimizer of torchdion, got "
            f"{type(optimizer).__name__}"
        )
    group = replica_group(optimizer)
    if group is None:
        raise ValueError(
            "torchdion.ddp_comm_hook: the optimizer must average over replicas: give it the replicate_mesh "
            "(with replicate_mesh_grad_sync=True), or register no hook"
        )
    if optimizer not in _checked:
        _check_ranks(optimizer, group)
        _checked.add(optimizer)
    return group


def _check_ranks(optimizer: Optimizer, group: dist.ProcessGroup) -> None:
    """DistributedDataParallel tells its hooks nothing of its group, so the model is looked for among all objects."""
    ranks = dist.get_process_group_ranks(group)
    for model in gc.get_objects():
        if not issubclass(type(model), DistributedDataParallel):
            continue
        if any(state is optimizer for _, state in model._comm_hooks):
            others = dist.get_process_group_ranks(model.process_group)
            if sorted(others) != sorted(ranks):
                raise ValueError(
                    "torchdion.ddp_comm_hook: replicate_mesh must have the ranks of the DistributedDataParallel model, "
                    f"{sorted(others)}, got {sorted(ranks)}"
                )
