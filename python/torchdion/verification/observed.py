"""What each rank notes of its training, for the checks to compare."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from torchdion import _C
from torchdion.dtensor import is_dtensor, local_part
from torchdion.optimizer import Optimizer
from torchdion.verification.run import Run, State

UNCOUNTED = ("completion", "agreement")
"""Kinds of collectives without elements of their own: the second half of a sum, and flags that ranks agree on."""


UNEQUAL = ("all_to_all", "completion")
"""Kinds in which each rank may have another number of elements."""


@dataclass
class Digest:
    """Of this rank's piece of a parameter or a state; ranks at one coordinate along `cut_by` have the same."""

    content: str
    cut_by: tuple[str, ...]
    differs_over_dp: bool


@dataclass
class Observed:
    """By one rank.

    Args:
        replicas: what check_replicas() refused, empty when nothing.
        issued: by axis: kind and elements of each collective, in the order of their issue; 0 of those in UNEQUAL.
        traffic: of each step: elements by axis that were sent, and that the formulas say.
    """

    rank: int
    state: State
    digests: dict[str, Digest]
    replicas: str
    issued: dict[str, list[tuple[str, int]]]
    traffic: list[tuple[dict[str, int], dict[str, int]]]


def observe(run: Run, mesh: DeviceMesh) -> Observed:
    """This rank's part in all the steps of a run on the mesh."""
    traffic = []

    def train() -> None:
        for step in range(run.training.steps):
            run.backward(step)
            traffic.append(_step(run.optimizer))
            run.optimizer.zero_grad()

    issued = by_axis(_C.trace_of(train))
    refused = _refused(run.optimizer, mesh)
    digests = dict(_digests(run))
    run.optimizer.synchronize_for_checkpoint()
    return Observed(dist.get_rank(), run.state(), digests, refused, issued, traffic)


def _step(optimizer: Optimizer) -> tuple[dict[str, int], dict[str, int]]:
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
            kind = str(event["kind"])
            elements = 0 if kind in UNEQUAL else int(event["elements"])
            issued.setdefault(str(event["axis"]), []).append((kind, elements))
    return issued


def _refused(optimizer: Optimizer, mesh: DeviceMesh) -> str:
    try:
        optimizer.check_replicas(mesh.get_group("dp"))
    except RuntimeError as error:
        return str(error)
    return ""


def _digests(run: Run) -> Iterator[tuple[str, Digest]]:
    run.optimizer.stats()  # ends what is in flight
    for name, param in run.network.named_parameters():
        yield name, _digest(param.detach(), False)
        decoupled = run.optimizer.decoupled_states(param)
        for key, tensor in run.optimizer.state[param].items():
            is_own = key in decoupled or (run.has_owners and key != "step")
            yield f"{key} of {name}", _digest(tensor, is_own)


def _digest(tensor: Tensor, differs_over_dp: bool) -> Digest:
    content = local_part(tensor).cpu().contiguous().numpy().tobytes()
    cut_by: tuple[str, ...] = ()
    if is_dtensor(tensor):
        names = tensor.device_mesh.mesh_dim_names or ()
        cut_by = tuple(name for name, lies in zip(names, tensor.placements, strict=True) if not lies.is_replicate())
    return Digest(hashlib.blake2b(content, digest_size=16).hexdigest(), cut_by, differs_over_dp)
