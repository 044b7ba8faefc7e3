"""Parameters, gradients and states that are DTensors: their pieces, placements and cuts."""

import math
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from torchdion.words import front

if TYPE_CHECKING:  # at run time its import costs 0.4 s, which only those who have DTensors need to pay
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.placement_types import Placement
    from typing_extensions import TypeIs

Cuts = dict[int, tuple[int, ...]]
"""By dimension of a tensor: the dimensions of the mesh that cut it, the outermost cut first."""


_PLAIN = (Tensor, torch.nn.Parameter)


def is_plain(tensor: Any) -> bool:
    """Whether it is of torch's own types, and none of a subclass."""
    return type(tensor) in _PLAIN


def is_dtensor(tensor: Any) -> "TypeIs[DTensor]":
    if is_plain(tensor):  # at a fraction of the price, for every tensor of every step
        return False
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local_part(tensor: Tensor) -> Tensor:
    """This rank's piece of a DTensor, in place, once what is still on its way has arrived; a plain tensor itself."""
    if not is_dtensor(tensor):
        return tensor
    local = tensor._local_tensor  # the tensor itself: to_local() gives others of the same memory
    return local.wait() if hasattr(local, "wait") else local


def local_piece(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The same, where no elements are also no elements of this shape: FSDP2 gives all empty pieces the same one."""
    local = local_part(tensor)
    return local.view(shape) if local.numel() == math.prod(shape) == 0 else local


def state_like(
    local: Tensor, param: Tensor, shape: Iterable[int], placements: "tuple[Placement, ...] | None" = None
) -> Tensor:
    """This rank's piece of a state of a parameter as what the parameter is: a DTensor on its mesh, or a tensor."""
    if not is_dtensor(param):
        return local
    from torch.distributed.tensor import DTensor

    whole = torch.empty(tuple(shape), device="meta")
    return DTensor.from_local(
        local, param.device_mesh, placements or param.placements, shape=whole.shape, stride=whole.stride()
    )


def cuts_of(param: "DTensor", name: str) -> Cuts:
    """Reads placements; mesh dimensions of size 1 cut nothing.

    Plain Shards of one dimension nest from left to right. A _StridedShard comes after as many of the mesh dimensions to
    its right as its split factor has shards: FSDP2 on top of tensor parallelism cuts the pieces of the latter.

    Raises:
        ValueError: a placement that is neither Shard nor Replicate.
    """
    cuts: dict[int, list[int]] = {}
    for mesh_dim in reversed(range(param.device_mesh.ndim)):
        placement = param.placements[mesh_dim]
        if placement.is_replicate() or param.device_mesh.size(mesh_dim) == 1:
            continue
        if placement.is_partial() or not hasattr(placement, "dim"):
            raise ValueError(f"{front()}: the placements of {name} must be Shard or Replicate, got {placement}")
        outer = cuts.setdefault(placement.dim, [])
        position, shards = 0, 1
        while shards < getattr(placement, "split_factor", 1) and position < len(outer):
            shards *= param.device_mesh.size(outer[position])
            position += 1
        if shards != getattr(placement, "split_factor", 1):
            raise ValueError(
                f"{front()}: {placement} of {name} must have a split factor that some of the mesh dimensions to "
                f"its right make up, got {param.placements} on a mesh of {tuple(param.device_mesh.shape)}"
            )
        outer.insert(position, mesh_dim)
    return {dim: tuple(mesh_dims) for dim, mesh_dims in sorted(cuts.items())}


def placements_of(param: "DTensor", dims: dict[int, int | None]) -> "tuple[Placement, ...]":
    """Those of a state whose dimensions ``dims`` gives by the parameter's; None: it is whole where that is cut."""
    return tuple(_moved(placement, dims) for placement in param.placements)


def _moved(placement: "Placement", dims: dict[int, int | None]) -> "Placement":
    if not hasattr(placement, "dim"):
        return placement
    dim = dims.get(placement.dim, placement.dim)
    if dim is None:
        from torch.distributed.tensor import Replicate

        return Replicate()
    strided = {"split_factor": placement.split_factor} if hasattr(placement, "split_factor") else {}
    moved: Placement = cast(Any, type(placement))(dim, **strided)
    return moved


def check_lies_as(value: Tensor, param: Tensor, placements: "tuple[Placement, ...]", what: str) -> None:
    """Raises ValueError for a state or gradient that is a DTensor where its parameter is none, or lies elsewhere."""
    if not is_dtensor(param):
        if is_dtensor(value):
            raise ValueError(f"{front()}: {what} must be a plain tensor as its parameter is, got a DTensor")
        return
    if not is_dtensor(value):
        raise ValueError(f"{front()}: {what} must be a DTensor as its parameter is, got a plain tensor")
    if value.device_mesh != param.device_mesh or value.placements != placements:
        raise ValueError(
            f"{front()}: {what} must be placed as {placements} on {param.device_mesh}, got {value.placements} on "
            f"{value.device_mesh}"
        )
