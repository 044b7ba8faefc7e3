"""Tensors that go by the CPU: those on a device for which their process group has gloo, which reads the host's memory.

For tensors on a GPU gloo copies in some of its collectives. It has nothing in others, such as the coalesced all-gather
behind ``DTensor.full_tensor()``, and follows the GPU's address on the host there. ``csrc/comm/by_cpu.h`` is the same
for the engine's collectives; no other module of Python makes DTensors whole or gives them other placements.
"""

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.utils.weak import WeakIdKeyDictionary

from torchdion.dtensor import local_part

if TYPE_CHECKING:  # at run time its import costs 0.4 s, which only those who have DTensors need to pay
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.placement_types import Placement


def goes_by_cpu(group: ProcessGroup, device_type: str) -> bool:
    """True if the group has gloo, or nothing, for such devices, which are no CPUs, and moves what lies on the CPU."""
    served = {device.type for device in group._device_types}
    if device_type == "cpu" or "cpu" not in served:
        return False
    return device_type not in served or group._get_backend(torch.device(device_type)).name() == "gloo"


@torch.no_grad()
def whole(tensor: "DTensor") -> Tensor:
    """``tensor.full_tensor()`` without its graph, on its own device, to be called on every rank of its mesh."""
    if not _mesh_goes_by_cpu(tensor.device_mesh):
        return tensor.full_tensor()
    return _on_cpu(tensor).full_tensor().to(tensor.device)


@torch.no_grad()
def redistributed(tensor: "DTensor", placements: "tuple[Placement, ...]") -> "DTensor":
    """``tensor.redistribute(placements=placements)`` likewise."""
    if not _mesh_goes_by_cpu(tensor.device_mesh):
        return tensor.redistribute(placements=placements)
    moved = local_part(_on_cpu(tensor).redistribute(placements=placements)).to(tensor.device)
    return _with_local(tensor, moved, tensor.device_mesh, placements)


def sum_over(group: ProcessGroup, tensor: Tensor) -> None:
    """``dist.all_reduce(tensor, group=group)``, by the CPU."""
    total = tensor.cpu()
    dist.all_reduce(total, group=group)
    tensor.copy_(total)


def _mesh_goes_by_cpu(mesh: "DeviceMesh") -> bool:
    return any(goes_by_cpu(group, mesh.device_type) for group in mesh.get_all_groups())


def _on_cpu(tensor: "DTensor") -> "DTensor":
    return _with_local(tensor, local_part(tensor).cpu(), _mesh_on_cpu(tensor.device_mesh), tensor.placements)


_MESHES: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""Mesh → that of the CPU. By identity: meshes are equal whose groups are others."""


def _mesh_on_cpu(mesh: "DeviceMesh") -> "DeviceMesh":
    """A mesh of the same groups whose device is the CPU."""
    from torch.distributed.device_mesh import DeviceMesh

    if mesh not in _MESHES:
        names = mesh.mesh_dim_names or tuple(f"mesh_dim_{dim}" for dim in range(mesh.ndim))
        _MESHES[mesh] = DeviceMesh.from_group(mesh.get_all_groups(), "cpu", mesh.mesh, mesh_dim_names=names)
    moved: DeviceMesh = _MESHES[mesh]
    return moved


def _with_local(tensor: "DTensor", local: Tensor, mesh: "DeviceMesh", placements: "tuple[Placement, ...]") -> "DTensor":
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(local, mesh, placements, shape=tensor.shape, stride=tensor.stride())
