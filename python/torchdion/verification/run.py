"""A network in training, on a mesh of processes or in one."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh

from torchdion.by_cpu import whole
from torchdion.ddp import ddp_comm_hook
from torchdion.dtensor import is_dtensor
from torchdion.optimizer import Optimizer
from torchdion.routing import param_groups
from torchdion.verification.network import Network, Shape, Sizes, distribute

SEQUENCES = 2
"""Of each data rank, in a step."""


@dataclass(frozen=True)
class Training:
    """What is trained, where and how.

    Args:
        compress: the optimizer averages the gradients over dp; otherwise DDP or FSDP2 does.
        options: of the optimizer.
        algorithm: of its matrices.
        device: the type of that on which parameters lie, of which each rank's current one is meant.
        has_owners: replicas share out the states.
    """

    name: str
    sizes: Sizes
    shape: Shape
    steps: int
    compress: bool
    options: dict[str, Any]
    device: str = "cpu"
    algorithm: str = "dion"
    has_owners: bool = False

    @property
    def averages(self) -> bool:
        return self.compress and self.sizes.dp > 1


@dataclass
class State:
    """Whole tensors on the CPU, by the name of the parameter; states by their own name before."""

    start: dict[str, Tensor]
    weights: dict[str, Tensor]
    states: dict[str, dict[str, Tensor]]


class Run:
    """One trajectory, whichever mesh follows it; without one a process has the sequences of all data ranks."""

    def __init__(self, training: Training, mesh: DeviceMesh | None = None) -> None:
        self.training, self.mesh = training, mesh
        self.network = Network(training.shape.on(training.sizes.tp)).to(training.device)
        self.model: nn.Module = self.network
        self.averages = training.averages and mesh is not None
        if mesh is not None:
            self.model = distribute(self.network, mesh, training.sizes, self.averages)
        self.has_owners = training.has_owners and mesh is not None
        own: dict[str, Any] = {}
        if mesh is not None and (self.averages or self.has_owners):
            own = {"replicate_mesh": mesh["dp"], "replicate_mesh_grad_sync": self.averages}
        if self.has_owners:
            own["owners"] = "shard"
        make: Any = Optimizer.of(training.algorithm)
        self.optimizer: Optimizer = make(param_groups(self.network), **training.options, **own)
        if self.averages and isinstance(self.model, nn.parallel.DistributedDataParallel):
            self.model.register_comm_hook(self.optimizer, ddp_comm_hook)
        self.start = self.weights()

    def backward(self, step: int) -> None:
        sequences = sequences_of(self.training, step)
        if self.mesh is not None:
            sizes, coordinate = self.training.sizes, self.training.sizes.coordinate(dist.get_rank())
            sequences = sequences.chunk(sizes.data_ranks)[coordinate["dp"] * sizes.fs + coordinate["fs"]]
        backward(self.model, sequences.to(self.training.device))

    def train(self, begin: int, end: int) -> None:
        for step in range(begin, end):
            self.backward(step)
            self.optimizer.step()
            self.optimizer.zero_grad()

    def weights(self) -> dict[str, Tensor]:
        return {name: _whole(param) for name, param in self.network.named_parameters()}

    def state(self) -> State:
        """To be called on every rank."""
        members = [param for group in self.optimizer.param_groups for param in group["params"]]
        names = {param: name for name, param in self.network.named_parameters()}
        states: dict[str, dict[str, Tensor]] = {}
        for index, values in self.optimizer.whole_state_dict()["state"].items():
            for key, value in values.items():
                if key != "step":
                    states.setdefault(key, {})[names[members[index]]] = value.detach().clone().cpu()
        return State(self.start, self.weights(), states)

    def save(self, folder: Path) -> None:
        self.optimizer.synchronize_for_checkpoint()
        save(self._checkpoint(), checkpoint_id=str(folder), no_dist=self.mesh is None)

    def load(self, folder: Path) -> None:
        checkpoint = self._checkpoint()
        load(checkpoint, checkpoint_id=str(folder), no_dist=self.mesh is None)
        set_state_dict(
            self.network,
            self.optimizer,
            model_state_dict=checkpoint["model"],
            optim_state_dict=checkpoint["optimizer"],
        )

    def _checkpoint(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.network, self.optimizer)
        return {"model": model, "optimizer": optimizer}


def sequences_of(training: Training, step: int) -> Tensor:
    """Tokens of all data ranks, the same on every rank."""
    shape = (training.sizes.data_ranks * SEQUENCES, training.shape.length + 1)
    return torch.randint(training.shape.vocabulary, shape, generator=torch.Generator().manual_seed(step))


def backward(model: nn.Module, sequences: Tensor) -> None:
    logits = model(sequences[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), sequences[:, 1:].flatten())
    torch.autograd.backward(loss)


def _whole(tensor: Tensor) -> Tensor:
    """A copy: also where every rank has all of a DTensor, which is then whole as it lies."""
    return (whole(tensor) if is_dtensor(tensor) else tensor).detach().clone().cpu()
