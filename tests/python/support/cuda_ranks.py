"""What the tests of several ranks on a GPU share: without one they run on the CPU over gloo, and go with the code."""

import torch
from on_gpu import HAS_GPU
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn import Parameter

DEVICE, ALONE = ("cuda", "nccl") if HAS_GPU else ("cpu", "gloo")


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """The same numbers on every device."""
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn.to(DEVICE, dtype)


def take_the_gpu() -> None:
    """All ranks the same one."""
    if DEVICE == "cuda":
        torch.cuda.set_device(0)


def cut(whole: Tensor, mesh: DeviceMesh) -> Parameter:
    return Parameter(distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None))
