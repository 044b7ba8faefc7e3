"""Collectives on lists of tensors, for what is done now and then: checkpoints and checks."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

PACKED_BYTES = 64 * 2**20
"""Tensors are sent together up to this size."""


def average(tensors: Iterable[Tensor], group: dist.ProcessGroup) -> None:
    """Replaces each tensor by its mean over the group, whose ranks have equally many of equal sizes; sums in FP32."""
    for batch in _batches(tensors):
        dtype = torch.promote_types(batch[0].dtype, torch.float32)
        packed = torch.cat([tensor.flatten().to(dtype) for tensor in batch])
        dist.all_reduce(packed, group=group)
        packed.div_(group.size())
        unpack(packed, batch)


def copy_from_first(tensors: Iterable[Tensor], group: dist.ProcessGroup) -> None:
    """Replaces each tensor by that of the group's first rank."""
    for batch in _batches(tensors):
        packed = torch.cat([tensor.flatten() for tensor in batch])
        dist.broadcast(packed, group=group, group_src=0)
        unpack(packed, batch)


def differing(tensors: Sequence[Tensor], group: dist.ProcessGroup) -> list[bool]:
    """Whether each tensor's bytes differ between any two ranks of the group."""
    if not tensors:
        return []
    # As few numbers need no GPU, wherever the group moves what lies on the CPU; NCCL alone does not.
    moves_from_cpu = any(device.type == "cpu" for device in group._device_types)
    device = torch.device("cpu") if moves_from_cpu else tensors[0].device
    digests = torch.tensor([_digest(tensor) for tensor in tensors], device=device)
    smallest, largest = digests.clone(), digests
    dist.all_reduce(smallest, dist.ReduceOp.MIN, group=group)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    different: list[bool] = (smallest != largest).tolist()
    return different


def unpack(packed: Tensor, tensors: Sequence[Tensor]) -> None:
    """Writes back what was flattened and put together."""
    for tensor, piece in zip(tensors, torch.split(packed, [tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(piece.view(tensor.shape))


def _digest(tensor: Tensor) -> int:
    content = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return int.from_bytes(hashlib.blake2b(content.data, digest_size=8).digest(), "little", signed=True)


def _batches(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors of one dtype and device, in their order and up to PACKED_BYTES; what is empty is left out."""
    open_batches: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        if tensor.numel() == 0:
            continue
        batch = open_batches.setdefault((tensor.dtype, tensor.device), [])
        if sum(other.nbytes for other in batch) + tensor.nbytes > PACKED_BYTES and batch:
            yield list(batch)
            batch.clear()
        batch.append(tensor)
    yield from filter(None, open_batches.values())
