"""A run on many processes, started by torchrun: data parallel × fully sharded × tensor parallel, and compressed.

    torchrun --nproc-per-node 8 examples/gpt/train.py --dp 2 --fs 2 --tp 2 --compress

Tensor parallelism cuts the matrices of a block over `tp` processes, fully_shard (FSDP2) over `fs` of them, and `dp`
copies of that train on different sequences. Without --compress the copies' gradients are averaged by FSDP2 (as HSDP)
or DistributedDataParallel; with it they stay where they are, and the optimizer averages in step(): Dion its factors,
Muon the momentum of a matrix on the way to the process that orthonormalizes it.
"""

import atexit
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import checkpoint
import sharded
import torch
import torch.distributed as dist
from data import Batch
from errors import Problem
from model import GPT
from presets import SHARED
from processes import Job, OneProcess
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

import torchdion
from torchdion.by_cpu import whole


class ManyProcesses(OneProcess):
    """One of the job's processes."""

    repeated_signals = ()  # torchrun passes on what a terminal has sent to all already, and kills after 30 s

    def __init__(self, job: Job, device_type: str) -> None:
        self.job = job
        if device_type == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        self._began = not dist.is_initialized()
        if self._began:
            # gloo for what lies on the CPU: the words of checkpoints, and what the optimizer's ranks agree on.
            _meet("cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo")
            # gloo's threads may still hold tensors. One that frees a tensor while Python shuts down aborts the process
            # (pytorch#190489), so they get time to do it before.
            atexit.register(time.sleep, 0.1)
        else:
            dist.barrier()  # until all have looked what the folder holds, the first must not write there
        self.mesh = init_device_mesh(device_type, (job.dp, job.fs, job.tp), mesh_dim_names=("dp", "fs", "tp"))
        self.data = self.mesh["dp", "fs"]._flatten("data").get_group()
        self.speaks = dist.get_rank() == 0

    def check_folder(self, folder: Path) -> None:
        sharded.check_that_all_see(folder)

    def distribute(self, model: GPT) -> nn.Module:
        job = self.job
        if job.tp > 1:
            _cut_blocks(model, self.mesh["tp"])
        if job.fs == job.tp == 1:
            return DistributedDataParallel(model, device_mesh=self.mesh["dp"])
        if job.data_ranks > 1:
            # On the one-dimensional mesh FSDP2 leaves the replicas' gradients alone.
            shards = self.mesh["fs"] if job.compress or job.dp == 1 else self.mesh["dp", "fs"]
            for block in model.blocks:
                fully_shard(block, mesh=shards)
            fully_shard(model, mesh=shards)
        return model

    def optimizer_options(self, optimizer: str) -> dict[str, Any]:
        if optimizer in SHARED:
            return {"replicate_mesh": self.mesh["dp"], "replicate_mesh_grad_sync": self.job.compress}
        return {"replicate_mesh": self.mesh["dp"]} if self.job.compress else {}

    def connect(self, forward: nn.Module, optimizer: Optimizer) -> None:
        if self.job.compress and isinstance(forward, DistributedDataParallel):
            forward.register_comm_hook(optimizer, torchdion.ddp_comm_hook)

    def share(self, batch: Batch, flag: str) -> Batch:
        parts, rank = self.job.data_ranks, self.data.rank()
        if len(batch.inputs) % parts:
            raise Problem(f"{flag}: {len(batch.inputs)} sequences cannot be shared out evenly to --dp × --fs = {parts}")
        return Batch(batch.inputs.chunk(parts)[rank], batch.targets.chunk(parts)[rank])

    def mean(self, loss: float) -> float:
        total = torch.tensor(loss, dtype=torch.float64)
        dist.all_reduce(total, group=self.data)
        return total.item() / self.job.data_ranks

    def clip(self, parameters: Iterable[Tensor], largest: float) -> float:
        """With --compress each replica clips by the norm of its own gradients, which no other process has."""
        by_mesh: dict[DeviceMesh | None, list[Tensor]] = {}
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is not None:
                by_mesh.setdefault(getattr(gradient, "device_mesh", None), []).append(gradient)
        norms = [_whole(get_total_norm(gradients)) for gradients in by_mesh.values()]
        norm = float(torch.linalg.vector_norm(torch.stack(norms)))
        if 0 < largest < norm:
            for gradients in by_mesh.values():
                for gradient in gradients:
                    gradient.mul_(largest / norm)
        return norm

    def largest(self, number: int) -> int:
        total = torch.tensor(number)
        dist.all_reduce(total, dist.ReduceOp.MAX)
        return int(total.item())

    def save(
        self,
        folder: Path,
        step: int,
        keep: int,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        rest: dict[str, Any],
    ) -> None:
        unfinished = folder / f"checkpoint-{step:08d}{checkpoint.UNFINISHED}"
        sharded.on_first(unfinished, unfinished.mkdir)
        sharded.write(unfinished, model, optimizers[0], rest)
        sharded.on_first(unfinished, lambda: checkpoint.finish(unfinished, keep))

    def _load_weights(self, model: nn.Module, weights: dict[str, Any]) -> None:
        sharded.distribute_weights(model, weights)

    def finish(self) -> None:
        dist.barrier()
        if self._began:
            dist.destroy_process_group()


def _meet(backend: str) -> None:
    """As init_process_group() alone, which after a restart by torchrun may find the addresses of the dead."""
    of_torchrun = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # the store that outlives the processes
    if of_torchrun and int(os.environ["GROUP_WORLD_SIZE"]) > 1 and int(os.environ["TORCHELASTIC_MAX_RESTARTS"]) > 0:
        # Each torchrun counts restarts of its own, so that their processes cannot tell which attempt they belong to.
        raise Problem(
            "--max-restarts on several machines needs TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in torchrun's environment"
        )
    store, rank, size = next(rendezvous("env://"))
    if of_torchrun:
        store = PrefixStore(f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)


def _cut_blocks(model: GPT, mesh: DeviceMesh) -> None:
    """Each process gets some of the heads and of the MLP's neurons; embedding and head are on all of them."""
    plan = {
        "attention.query": ColwiseParallel(),
        "attention.key": ColwiseParallel(),
        "attention.value": ColwiseParallel(),
        "attention.output": RowwiseParallel(),
        "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(),
    }
    for block in model.blocks:
        parallelize_module(block, mesh, plan)


def _whole(norm: Tensor) -> Tensor:
    return whole(norm) if isinstance(norm, DTensor) else norm
