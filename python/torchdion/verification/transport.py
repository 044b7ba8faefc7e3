"""What moves tensors between the ranks, and on which device each rank has them."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from torchdion.torch_versions import one_thread_per_gloo_group


@dataclass(frozen=True)
class Transport:
    """A backend of torch.distributed, and the type of the devices on which parameters lie.

    NCCL wants a GPU for each rank; gloo moves CUDA tensors by way of the CPU, and its ranks may share a GPU.
    """

    backend: str = "gloo"
    device: str = "cpu"

    @property
    def start_method(self) -> str:
        """Of processes on this machine: CUDA does not survive a fork once a process has looked for GPUs."""
        return "spawn" if self.device == "cuda" else "fork"


def meet(transport: Transport, local_rank: int, time_limit: timedelta, **how: Any) -> None:
    """Makes the process group, and of this machine's GPUs the one of this number the current one.

    Groups of gloo, this and later ones, have one thread each: two may end the process (one_thread_per_gloo_group).

    Args:
        local_rank: among the ranks of this machine.
        how: store, rank and world_size, where the environment does not say them.
    """
    if transport.device == "cuda":
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
    if transport.backend == "gloo":
        one_thread_per_gloo_group()
    dist.init_process_group(transport.backend, timeout=time_limit, **how)


def barrier() -> None:
    """Tells NCCL the device, for which it would guess and warn."""
    dist.barrier(device_ids=[torch.cuda.current_device()] if dist.get_backend() == "nccl" else None)
