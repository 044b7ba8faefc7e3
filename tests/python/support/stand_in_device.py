"""A GPU's stand-in: tensors that torch takes for those of another device, and that no collective takes."""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

KIND = "stand_in"
COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor")


class Refused(Exception):
    """A collective was given a tensor that it would follow to a GPU."""


class OnDevice(Tensor):
    """A tensor whose numbers lie on the CPU, in `held`."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "OnDevice":
        device = register()
        made: OnDevice = Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), dtype=held.dtype, device=device
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.namespace in COLLECTIVES:
            raise Refused(str(function))
        kwargs = dict(kwargs or {})
        target = kwargs.get("device")
        if target is not None:
            kwargs["device"] = torch.device("cpu")
        args, kwargs = tree_map(lambda x: x.held if isinstance(x, cls) else x, (args, kwargs))
        result = function(*args, **kwargs)
        if target is not None and target.type == "cpu":
            return result.clone()
        return tree_map(lambda x: cls(x) if isinstance(x, Tensor) else x, result)


@cache
def register() -> torch.device:
    """Makes the device known to torch for the life of this process, which takes it for its accelerator from then on."""
    _setup_privateuseone_for_python_backend(KIND)
    for name, make in {"empty_strided": torch.empty_strided, "empty.memory_format": torch.empty}.items():
        LIBRARY.impl(name, _on_device(make), "PrivateUse1")
    return torch.device(KIND, 0)


LIBRARY = torch.library.Library("aten", "IMPL")


def _on_device(make: Any) -> Any:
    return lambda *sizes, dtype=None, memory_format=None, **kwargs: OnDevice(make(*sizes, dtype=dtype))


def stand_in_mesh(**sizes: int) -> DeviceMesh:
    """A mesh whose device is the stand-in, over gloo."""
    register()
    on_cpu = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    return DeviceMesh.from_group(on_cpu.get_all_groups(), KIND, on_cpu.mesh, mesh_dim_names=tuple(sizes))


def moved(tensor: DTensor, mesh: DeviceMesh) -> DTensor:
    """A DTensor of the CPU on the mesh of the stand-in."""
    local = OnDevice(tensor.to_local())
    return DTensor.from_local(local, mesh, tensor.placements, shape=tensor.shape, stride=tensor.stride())
