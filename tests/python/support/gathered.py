"""Whole tensors of their pieces, whatever device these lie on."""

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor


def gathered(tensor: Tensor) -> Tensor:
    """A copy of the whole of it, on the CPU.

    Of CUDA tensors over gloo DTensor.full_tensor() is not called, where tests with torch 2.11 died: the coalesced
    all-gather behind it has nothing for CUDA in torch's sources, and would read their addresses on the host.
    """
    if not isinstance(tensor, DTensor):
        return tensor.detach().clone().cpu()
    with torch.no_grad():  # DTensor.detach() takes torch 2.15 some 10 ms for every new shape
        return (tensor if tensor.device_mesh.device_type == "cpu" else on_the_cpu(tensor)).full_tensor()


def on_the_cpu(tensor: DTensor) -> DTensor:
    mesh = tensor.device_mesh
    groups = mesh.get_all_groups()
    if mesh.ndim == 1:
        moved = DeviceMesh.from_group(groups[0], "cpu", mesh_dim_names=mesh.mesh_dim_names)
    else:
        moved = DeviceMesh.from_group(groups, "cpu", mesh.mesh, mesh_dim_names=mesh.mesh_dim_names)
    local = tensor.to_local().cpu()
    return DTensor.from_local(local, moved, tensor.placements, shape=tensor.shape, stride=tensor.stride())
