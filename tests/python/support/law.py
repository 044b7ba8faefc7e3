"""What the tests of the law share: parameters of every role on a (dp, fs, tp) mesh, and what one process makes of them.

The optimizer averages over dp (`replicate_mesh`), where every rank has gradients of its own; fs and tp cut the
parameters, which are DTensors.
"""

import functools
import math
import random
from dataclasses import dataclass, replace
from typing import Any

import torch
from gathered import gathered
from roles import Role
from runs import error, start
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn import Parameter
from trajectory import Expected, drawn_factors, error_of_state, expected_of

import torchdion
from torchdion.table import ALGORITHMS

MESHES = [(1, 1, 1), (8, 1, 1), (1, 8, 1), (1, 1, 8), (2, 2, 2), (2, 1, 2), (2, 3, 1)]  # (dp, fs, tp)
BOUND = {torch.float64: 1e-10, torch.float32: 1e-4}
CONDITION = 1e4  # κ(BQ) beyond which two correct programs part ways
HYPER = {"lr": 0.02, "mu": 0.95, "weight_decay": 0.1, "betas": (0.9, 0.95)}


def normal(shape: tuple[int, ...], dtype: torch.dtype, *key: int) -> Tensor:
    """The same normal numbers for the same key, wherever they are drawn."""
    seed = functools.reduce(lambda seed, part: seed * 1009 + part, key, 0)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def members(roles: tuple[Role, ...]) -> list[Role]:
    """The role of each parameter."""
    return [role for role in roles for _ in range(role.count)]


def weight(index: int, role: Role, dtype: torch.dtype) -> Tensor:
    """Where the parameter of this index begins."""
    return normal(role.shape, dtype, index, 0, 0)


def gradient(index: int, role: Role, dtype: torch.dtype, step: int, replica: int) -> Tensor:
    return normal(role.shape, dtype, index, step + 1, replica)


@dataclass(frozen=True)
class Absence:
    """Which gradients are missing at random: shares of all but the first step's."""

    of_replica: float = 0.0  # drawn for each rank of dp
    of_all: float = 0.0  # drawn once for all ranks

    def replica_misses(self, index: int, step: int, replica: int) -> bool:
        return step > 0 and random.Random(f"{index} {step} {replica}").random() < self.of_replica

    def all_miss(self, index: int, step: int) -> bool:
        return step > 0 and random.Random(f"{index} {step}").random() < self.of_all


@dataclass(frozen=True)
class Job:
    """A training of all roles in one optimizer."""

    sizes: tuple[int, int, int]  # of dp, fs and tp
    roles: tuple[Role, ...]
    dtype: torch.dtype
    steps: int
    options: dict[str, Any]  # of the optimizer
    absence: Absence = Absence()
    native: bool = False  # dp is a mesh dimension of the parameters, and their gradients are averaged already
    declared: bool = False  # dp is a replicate_mesh whose gradients are averaged already
    device: str = "cpu"  # its type

    @property
    def averages(self) -> bool:
        return self.sizes[0] > 1 and not self.native and not self.declared


def mesh_of(sizes: tuple[int, int, int], device: str = "cpu") -> DeviceMesh:
    return init_device_mesh(device, sizes, mesh_dim_names=("dp", "fs", "tp"))


def cut_by(job: Job, mesh: DeviceMesh) -> DeviceMesh:
    """The mesh of the parameters. Once for many of them: torch takes half a millisecond to make it."""
    return mesh if job.native else mesh["fs", "tp"]


def piece(full: Tensor, role: Role, mesh: DeviceMesh) -> Tensor:
    """What this rank has of a tensor of the role, on a mesh of (fs, tp) or of (dp, fs, tp)."""
    full = full.to(mesh.device_type)
    if role.plain:
        return full.clone()
    cuts = [Replicate() if dim is None else Shard(dim) for dim in (role.fs, role.tp)]
    return distribute_tensor(full, mesh, [Replicate()] * (mesh.ndim - 2) + cuts, src_data_rank=None)


def leaf(tensor: Tensor) -> Parameter:
    """A parameter of it, as of Parameter(tensor), whose detach() takes torch 2.15 some 10 ms for every new DTensor."""
    tensor.requires_grad_()
    tensor._is_param = True
    assert isinstance(tensor, Parameter)
    return tensor


def groups_of(roles: tuple[Role, ...], params: list[Parameter]) -> list[dict[str, Any]]:
    """A parameter group for each role."""
    remaining = iter(params)
    return [{"params": [next(remaining) for _ in range(role.count)], **role.options} for role in roles]


@dataclass
class Run:
    """What a rank ends with: whole tensors, for each parameter."""

    X: list[Tensor]
    states: list[dict[str, Tensor]]
    stats: dict[str, Any]
    replica: int  # this rank's place on dp


def bits(run: Run) -> bytes:
    """Of weights and states, which copies have alike."""
    tensors = [*run.X, *(state for states in run.states for name, state in sorted(states.items()) if name != "step")]
    return b"".join(tensor.detach().numpy().tobytes() for tensor in tensors)


def set_gradients(job: Job, params: list[Parameter], step: int, mesh: DeviceMesh) -> None:
    """Each rank of dp gets its own, where the optimizer averages."""
    replica = mesh.get_local_rank("dp") if job.averages else 0
    of_params = cut_by(job, mesh)
    for index, (role, param) in enumerate(zip(members(job.roles), params, strict=True)):
        if job.absence.all_miss(index, step):
            param.requires_grad_(False)
        missing = not param.requires_grad or job.absence.replica_misses(index, step, replica)
        G = gradient(index, role, job.dtype, step, replica)
        param.grad = None if missing else piece(G, role, of_params)


def run_on_mesh(job: Job) -> Run:
    """The job on this rank."""
    mesh = mesh_of(job.sizes, job.device)
    of_params = cut_by(job, mesh)
    every = members(job.roles)
    weights = [weight(index, role, job.dtype) for index, role in enumerate(every)]
    params = [leaf(piece(X, role, of_params)) for role, X in zip(every, weights, strict=True)]
    replicas = {"replicate_mesh": mesh["dp"]} if job.averages or job.declared else {}
    if job.declared:
        replicas["replicate_mesh_grad_sync"] = False
    optimizer = torchdion.Dion(groups_of(job.roles, params), **HYPER, **job.options, **replicas)
    for step in range(job.steps):
        set_gradients(job, params, step, mesh)
        optimizer.step()
        for param in params:
            param.requires_grad_(True)
    stats = optimizer.stats()  # ends what is in flight
    return Run(
        X=[gathered(param) for param in params],
        states=[{name: gathered(state) for name, state in optimizer.state[param].items()} for param in params],
        stats=stats,
        replica=mesh.get_local_rank("dp"),
    )


def mean_gradient(job: Job, index: int, role: Role, step: int) -> Tensor | None:
    """Over dp, where a missing one counts as zero; None: missing on all ranks, which leave the parameter alone."""
    replicas = job.sizes[0] if job.averages else 1
    none_has_one = all(job.absence.replica_misses(index, step, replica) for replica in range(replicas))
    if job.absence.all_miss(index, step) or none_has_one:
        return None
    total = torch.zeros(role.shape, dtype=torch.float64)
    for replica in range(replicas):
        if not job.absence.replica_misses(index, step, replica):
            total += gradient(index, role, job.dtype, step, replica)
    return total / replicas


_one_process: dict[str, list[Expected]] = {}  # by job


def one_process(job: Job) -> list[Expected]:
    """What run_on_mesh() must end with: the oracle's, with the mean gradients; once for all meshes alike."""
    of_all = replace(job, sizes=(job.sizes[0] if job.averages else 1, 1, 1), native=False, declared=False, device="cpu")
    if repr(of_all) not in _one_process:
        _one_process[repr(of_all)] = compute_one_process(of_all)
    return _one_process[repr(of_all)]


def compute_one_process(job: Job) -> list[Expected]:
    every = members(job.roles)
    params = [Parameter(weight(index, role, job.dtype)) for index, role in enumerate(every)]
    optimizer = torchdion.Dion(groups_of(job.roles, params), **HYPER, **job.options)
    start(optimizer)
    groups = [group for group in optimizer.param_groups for _ in group["params"]]
    expected = []
    for index, (role, param, group) in enumerate(zip(every, params, groups, strict=True)):
        means = [mean_gradient(job, index, role, step) for step in range(job.steps)]
        gradients = [G for G in means if G is not None]
        factors = drawn_factors(optimizer.state[param])
        expected.append(expected_of(weight(index, role, job.dtype), factors, gradients, group))
    return expected


def assert_equal_to_one_process(job: Job, runs: list[Run], expected: list[Expected]) -> None:
    """Every rank's weights and factors, and the means of other states over dp, where each may have its own."""
    assert max(one.condition for one in expected) <= CONDITION
    for index, (role, one) in enumerate(zip(members(job.roles), expected, strict=True)):
        begin = weight(index, role, job.dtype)
        for rank, run in enumerate(runs):
            of_X = error(run.X[index], one.X, begin)
            assert of_X <= BOUND[job.dtype], f"{role.name}: the weights of rank {rank} are off by {of_X:.1e}"
        assert_equal_states(job, role.name, [run.states[index] for run in runs], [run.replica for run in runs], one)


def assert_equal_states(
    job: Job, name: str, by_rank: list[dict[str, Tensor]], replicas: list[int], expected: Expected
) -> None:
    shapes = {state.name: state.shape for algorithm in ALGORITHMS.values() for state in algorithm.states}
    assert all(states.keys() - {"step"} == expected.states.keys() for states in by_rank), name
    for state, whole_state in expected.states.items():
        bound = BOUND[job.dtype] * (10 if shapes[state] == "factor" else 1)
        own = [states[state] for states in by_rank]
        if shapes[state] != "factor":
            by_replica = dict(zip(replicas, own, strict=True))
            own = [torch.stack([each.double() for each in by_replica.values()]).mean(0)]
        for rank, one in enumerate(own):
            # Gradients have entries of about 1.
            off = error_of_state(shapes[state], one, whole_state, least=1e-2 * math.sqrt(one.numel()))
            assert off <= bound, f"{name}: {state} of rank {rank} is off by {off:.1e}"
