"""What each rank does: it trains the network on the mesh, and notes what the checks compare."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from torchdion import _C
from torchdion.ddp import ddp_comm_hook
from torchdion.dion import Dion
from torchdion.dtensor import is_dtensor, local_part
from torchdion.routing import param_groups
from torchdion.verification.mesh import Sizes
from torchdion.verification.network import Network, Shape, distribute
from torchdion.verification.paper import PaperOptimizer

SEQUENCES = 2
"""Of each data rank, in a step."""

UNCOUNTED = ("completion", "agreement")
"""Kinds of collectives without elements of their own: the second half of a sum, and flags that ranks agree on."""


@dataclass(frozen=True)
class Training:
    """Args:
    compress: the optimizer averages the gradients over dp; otherwise DDP or FSDP2 does.
    options: of the optimizer.
    """

    name: str
    sizes: Sizes
    shape: Shape
    steps: int
    compress: bool
    options: dict[str, Any]

    @property
    def averages(self) -> bool:
        return self.compress and self.sizes.dp > 1


@dataclass
class State:
    """Whole tensors by the name of the parameter, and of the state."""

    start: dict[str, Tensor]
    weights: dict[str, Tensor]
    momenta: dict[str, Tensor]
    Q: dict[str, Tensor]


@dataclass
class Digest:
    """Of this rank's piece of a parameter or a state; ranks at one place along `cut_by` have the same."""

    content: str
    cut_by: tuple[str, ...]
    differs_over_dp: bool


@dataclass
class Observed:
    """By one rank.

    Args:
        replicas: what check_replicas() refused, empty when nothing.
        issued: by axis: kind and elements of each collective, in the order of their issue.
        traffic: of each step: elements by axis that were sent, and that the formulas say.
    """

    rank: int
    state: State
    digests: dict[str, Digest]
    replicas: str
    issued: dict[str, list[tuple[str, int]]]
    traffic: list[tuple[dict[str, int], dict[str, int]]]


def train_alone(training: Training) -> State:
    """One process with the sequences of all data ranks."""
    network = Network(training.shape.on(training.sizes.tp))
    optimizer = Dion(param_groups(network), **training.options)
    start = _weights(network)
    for step in range(training.steps):
        _backward(network, _sequences(training, step))
        optimizer.step()
        optimizer.zero_grad()
    return _state(network, optimizer, start)


def train_as_published(training: Training) -> dict[str, Tensor]:
    """The weights that train_alone() must end with, by an optimizer that does not call the engine."""
    network = Network(training.shape.on(training.sizes.tp))
    groups = param_groups(network)
    starts = _starts_of_Q(training)
    optimizer = PaperOptimizer(groups, starts, training.options["lr"], training.options["orientation"])
    for step in range(training.steps):
        _backward(network, _sequences(training, step))
        optimizer.step()
    return _weights(network)


def _starts_of_Q(training: Training) -> dict[str, Tensor]:
    """A step with zero gradients creates them, and leaves them as they are."""
    network = Network(training.shape.on(training.sizes.tp))
    optimizer = Dion(param_groups(network), **training.options)
    for param in network.parameters():
        param.grad = torch.zeros_like(param)
    optimizer.step()
    return _state(network, optimizer, {}).Q


def train_on_mesh(training: Training, mesh: DeviceMesh, rank: int) -> Observed:
    """This rank's part."""
    sizes = training.sizes
    network = Network(training.shape.on(sizes.tp))
    model = distribute(network, mesh, sizes, training.averages)
    replicas = mesh["dp"] if training.averages else None
    optimizer = Dion(param_groups(network), **training.options, replicate_mesh=replicas)
    if training.averages and isinstance(model, nn.parallel.DistributedDataParallel):
        model.register_comm_hook(optimizer, ddp_comm_hook)
    place = sizes.place(rank)
    start = _weights(network)
    traffic = []
    _C.start_trace()
    for step in range(training.steps):
        _backward(model, _sequences(training, step).chunk(sizes.data_ranks)[place["dp"] * sizes.fs + place["fs"]])
        traffic.append(_step(optimizer))
        optimizer.zero_grad()
    issued = by_axis(_C.take_trace())
    refused = _refused(optimizer, mesh)
    digests = dict(_digests(network, optimizer, training))
    optimizer.synchronize_for_checkpoint()
    return Observed(rank, _state(network, optimizer, start), digests, refused, issued, traffic)


def _sequences(training: Training, step: int) -> Tensor:
    """Tokens of all data ranks, the same on every rank."""
    shape = (training.sizes.data_ranks * SEQUENCES, training.shape.length + 1)
    return torch.randint(training.shape.vocabulary, shape, generator=torch.Generator().manual_seed(step))


def _backward(model: nn.Module, sequences: Tensor) -> None:
    logits = model(sequences[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), sequences[:, 1:].flatten())
    torch.autograd.backward(loss)


def _step(optimizer: Dion) -> tuple[dict[str, int], dict[str, int]]:
    """Elements by axis: sent, and expected."""
    before = elements(optimizer.stats()["traffic"])
    optimizer.step()
    stats = optimizer.stats()
    sent = {axis: number - before.get(axis, 0) for axis, number in elements(stats["traffic"]).items()}
    return sent, stats["expected_traffic"]


def elements(traffic: dict[str, dict[str, dict[str, int]]]) -> dict[str, int]:
    """By axis, of the full tensors."""
    return {
        axis: sum(counts["elements"] for kind, counts in kinds.items() if kind not in UNCOUNTED)
        for axis, kinds in traffic.items()
    }


def by_axis(events: list[dict[str, str | int]]) -> dict[str, list[tuple[str, int]]]:
    issued: dict[str, list[tuple[str, int]]] = {}
    for event in events:
        if event["what"] == "issue":
            issued.setdefault(str(event["axis"]), []).append((str(event["kind"]), int(event["elements"])))
    return issued


def _refused(optimizer: Dion, mesh: DeviceMesh) -> str:
    try:
        optimizer.check_replicas(mesh.get_group("dp"))
    except RuntimeError as error:
        return str(error)
    return ""


def _digests(network: Network, optimizer: Dion, training: Training) -> Iterator[tuple[str, Digest]]:
    for name, param in network.named_parameters():
        yield name, _digest(param.detach(), False)
        state = optimizer.state[param]
        for key, tensor in state.items():
            is_own = training.averages and key == "momentum" and "Q" in state  # each replica's, where it is compressed
            yield f"{key} of {name}", _digest(tensor, is_own)


def _digest(tensor: Tensor, differs_over_dp: bool) -> Digest:
    content = local_part(tensor).contiguous().numpy().tobytes()
    cut_by: tuple[str, ...] = ()
    if is_dtensor(tensor):
        names = tensor.device_mesh.mesh_dim_names or ()
        cut_by = tuple(name for name, lies in zip(names, tensor.placements, strict=True) if not lies.is_replicate())
    return Digest(hashlib.blake2b(content, digest_size=16).hexdigest(), cut_by, differs_over_dp)


def _weights(network: Network) -> dict[str, Tensor]:
    return {name: _whole(param) for name, param in network.named_parameters()}


def _state(network: Network, optimizer: Dion, start: dict[str, Tensor]) -> State:
    states = {name: optimizer.state[param] for name, param in network.named_parameters()}
    momenta, Q = (
        {name: _whole(state[key]) for name, state in states.items() if key in state} for key in ("momentum", "Q")
    )
    return State(start, _weights(network), momenta, Q)


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor().detach() if isinstance(tensor, DTensor) else tensor.detach().clone()
