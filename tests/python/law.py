"""What the tests of the law share: parameters of every role on a (dp, fs, tp) mesh, and what one process makes of them.

The optimizer averages over dp (`replicate_mesh`), where every rank has gradients of its own; fs and tp cut the
parameters, which are DTensors.
"""

import functools
import random
from dataclasses import dataclass
from typing import Any

import torch
from differential import matrices
from oracle import DionState, adamw, dion, lion
from roles import Role
from runs import error, start
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn import Parameter

import torchdion

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
    device: str = "cpu"  # its type

    @property
    def averages(self) -> bool:
        return self.sizes[0] > 1 and not self.native


def mesh_of(sizes: tuple[int, int, int], device: str = "cpu") -> DeviceMesh:
    return init_device_mesh(device, sizes, mesh_dim_names=("dp", "fs", "tp"))


def piece(full: Tensor, role: Role, mesh: DeviceMesh, native: bool = False) -> Tensor:
    """What this rank has of a tensor of the role."""
    full = full.to(mesh.device_type)
    if role.plain:
        return full.clone()
    cuts = [Replicate() if dim is None else Shard(dim) for dim in (role.fs, role.tp)]
    if native:
        return distribute_tensor(full, mesh, [Replicate(), *cuts], src_data_rank=None)
    return distribute_tensor(full, mesh["fs", "tp"], cuts, src_data_rank=None)


def whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.detach().clone()).cpu()


def groups_of(roles: tuple[Role, ...], params: list[Parameter]) -> list[dict[str, Any]]:
    """A parameter group for each role."""
    remaining = iter(params)
    return [{"params": [next(remaining) for _ in range(role.count)], **role.options} for role in roles]


@dataclass
class Run:
    """What a rank ends with: whole tensors, for each parameter."""

    X: list[Tensor]
    M: list[Tensor]
    Q: list[Tensor | None]
    stats: dict[str, Any]
    replica: int  # this rank's place on dp


def set_gradients(job: Job, params: list[Parameter], step: int, mesh: DeviceMesh) -> None:
    """Each rank of dp gets its own, where the optimizer averages."""
    replica = mesh.get_local_rank("dp") if job.averages else 0
    for index, (role, param) in enumerate(zip(members(job.roles), params, strict=True)):
        if job.absence.all_miss(index, step):
            param.requires_grad_(False)
        missing = not param.requires_grad or job.absence.replica_misses(index, step, replica)
        G = gradient(index, role, job.dtype, step, replica)
        param.grad = None if missing else piece(G, role, mesh, job.native)


def run_on_mesh(job: Job) -> Run:
    """The job on this rank."""
    mesh = mesh_of(job.sizes, job.device)
    every = members(job.roles)
    weights = [weight(index, role, job.dtype) for index, role in enumerate(every)]
    params = [Parameter(piece(X, role, mesh, job.native)) for role, X in zip(every, weights, strict=True)]
    replicas = {"replicate_mesh": mesh["dp"]} if job.averages else {}
    optimizer = torchdion.Dion(groups_of(job.roles, params), **HYPER, **job.options, **replicas)
    for step in range(job.steps):
        set_gradients(job, params, step, mesh)
        optimizer.step()
        for param in params:
            param.requires_grad_(True)
    states = [optimizer.state[param] for param in params]
    return Run(
        X=[whole(param) for param in params],
        M=[whole(state["momentum"]) for state in states],
        Q=[whole(state["Q"]) if "Q" in state else None for state in states],
        stats=optimizer.stats(),
        replica=mesh.get_local_rank("dp"),
    )


@dataclass
class Expected:
    """What the oracle makes of a parameter with the mean gradient over dp."""

    X: Tensor
    M: Tensor
    Q: Tensor | None
    condition: float = 1.0


def starts_of_Q(job: Job) -> list[Tensor | None]:
    """The first Q of each whole parameter in one process."""
    weights = [weight(index, role, job.dtype) for index, role in enumerate(members(job.roles))]
    params = [Parameter(X) for X in weights]
    optimizer = torchdion.Dion(groups_of(job.roles, params), **HYPER, **job.options)
    start(optimizer)
    return [optimizer.state[param].get("Q") for param in params]


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


def expected_elements(X: Tensor, gradients: list[Tensor], algorithm: str) -> Expected:
    lr, decay = HYPER["lr"], HYPER["weight_decay"]
    M, V = torch.zeros_like(X), torch.zeros_like(X)
    for step, G in enumerate(gradients):
        if algorithm == "adamw":
            X, M, V = adamw(X, M, V, G, step + 1, lr, *HYPER["betas"], 1e-8, decay)
        else:
            X, M = lion(X, M, G, lr, *HYPER["betas"], decay)
    return Expected(X, M, None)


def expected_matrices(
    X: Tensor, Q: Tensor, gradients: list[Tensor], form: dict[str, Any], orientation: str
) -> Expected:
    lr, mu, decay = HYPER["lr"], HYPER["mu"], HYPER["weight_decay"]
    ends, worst = [], 1.0
    for place, (matrix, first_Q) in enumerate(zip(matrices(X, form), Q.reshape(-1, *Q.shape[-2:]), strict=True)):
        state = DionState(matrix, torch.zeros_like(matrix), first_Q)
        for G in gradients:
            state = dion(state, matrices(G, form)[place], lr, mu, decay, orientation)
            worst = max(worst, state.condition)
        ends.append(state)

    def as_parameter(pieces: list[Tensor]) -> Tensor:
        return torch.stack([piece.mT if form["fan_in_first"] else piece for piece in pieces]).reshape(X.shape)

    new_Q = torch.stack([end.Q for end in ends]).reshape(Q.shape)
    return Expected(as_parameter([end.X for end in ends]), as_parameter([end.M for end in ends]), new_Q, worst)


def expected_of(role: Role, X: Tensor, Q: Tensor | None, gradients: list[Tensor], orientation: str) -> Expected:
    """The parameter after a step with each of the gradients."""
    if Q is None:
        return expected_elements(X, gradients, role.options.get("algorithm", "lion"))
    return expected_matrices(X, Q, gradients, role.form, orientation)


def one_process(job: Job) -> list[Expected]:
    """What run_on_mesh() must end with: the oracle's, with the mean gradients."""
    expected = []
    for index, (role, Q) in enumerate(zip(members(job.roles), starts_of_Q(job), strict=True)):
        means = [mean_gradient(job, index, role, step) for step in range(job.steps)]
        gradients = [G for G in means if G is not None]
        X = weight(index, role, job.dtype).double()
        expected.append(expected_of(role, X, Q, gradients, job.options.get("orientation", "right")))
    return expected


def assert_equal_to_one_process(job: Job, runs: list[Run], expected: list[Expected]) -> None:
    """Every rank's weights, the mean of the momenta over dp, and Q up to the signs of its columns."""
    assert max(one.condition for one in expected) <= CONDITION
    bound = BOUND[job.dtype]
    for index, (role, one) in enumerate(zip(members(job.roles), expected, strict=True)):
        begin = weight(index, role, job.dtype)
        for rank, run in enumerate(runs):
            of_X = error(run.X[index], one.X, begin)
            assert of_X <= bound, f"{role.name}: the weights of rank {rank} are off by {of_X:.1e}"
            assert_equal_Q(run.Q[index], one.Q, 10 * bound, f"{role.name}: Q of rank {rank}")
        by_replica = {run.replica: run.M[index].double() for run in runs}
        of_M = error(torch.stack(list(by_replica.values())).mean(0), one.M, torch.zeros_like(one.M))
        assert of_M <= bound, f"{role.name}: the mean momentum is off by {of_M:.1e}"


def assert_equal_Q(Q: Tensor | None, expected: Tensor | None, bound: float, name: str) -> None:
    if Q is None or expected is None:
        assert Q is None and expected is None, name
        return
    assert Q.shape == expected.shape, f"{name} has shape {tuple(Q.shape)}, expected {tuple(expected.shape)}"
    off = float((Q.double().abs() - expected.abs()).abs().max())
    assert off <= bound, f"{name} is off by {off:.1e}"
