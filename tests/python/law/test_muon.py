"""Muon on meshes: each kind of iteration, BF16 on the way to owners, and what pieces of whole matrices cost."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from law import (
    MESHES,
    Job,
    Run,
    assert_equal_to_one_process,
    bits,
    members,
    mesh_of,
    normal,
    one_process,
    run_on_mesh,
    weight,
)
from long_cases import some_of
from plan_models import block_model, distribute
from ranks import run_ranks
from roles import CORE, Role
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, distribute_tensor
from torch.nn import Parameter

import torchdion
from torchdion.planning.plan import Plan
from torchdion.verification.observed import elements

STEPS = 4
PLAIN = (Role("plain, tall", (24, 16), plain=True, count=7), Role("plain, wide", (9, 20), plain=True, count=2))
MUON = {"algorithm": "muon"}


def under_muon(roles: tuple[Role, ...], **options: Any) -> tuple[Role, ...]:
    return tuple(replace(role, options=role.options | MUON | options) for role in roles if role.is_dion)


def run_job(rank: int, world_size: int, job: Job) -> Run:
    return run_on_mesh(job)


@pytest.mark.filterwarnings("ignore:.*is one of:UserWarning")  # options that only other algorithms have
@pytest.mark.parametrize(
    "options", [{"newton_schulz": "jordan", "adjust_lr": None}, {"newton_schulz": "gram"}], ids=str
)
@pytest.mark.parametrize("sizes", some_of(MESHES, [(2, 2, 2)]))
def test_every_iteration_on_a_mesh_is_that_of_one_process(sizes: tuple[int, int, int], options: dict[str, Any]) -> None:
    job = Job(sizes, under_muon(CORE, **options), torch.float64, STEPS, {})
    assert_equal_to_one_process(job, run_ranks(run_job, math.prod(sizes), job), one_process(job))


@pytest.mark.filterwarnings("ignore:.*is one of:UserWarning")
@pytest.mark.parametrize("sizes", some_of([*MESHES[1:], (1, 2, 2), (2, 2, 1)], [(1, 2, 2), (2, 2, 1)]))
def test_layouts_agree_to_the_rounding_of_bf16_in_which_pieces_travel(sizes: tuple[int, int, int]) -> None:
    job = Job(sizes, under_muon(CORE), torch.float32, STEPS, {"precision": "medium"})
    exact = one_process(job)
    for run in run_ranks(run_job, math.prod(sizes), job):
        for index, role in enumerate(members(job.roles)):
            start = weight(index, role, torch.float64)
            distance = (run.X[index].double() - exact[index].X).norm() / (exact[index].X - start).norm()
            assert 1e-5 < distance < 0.1, (role.name, distance)


SHARING = {
    "HSDP": Job((2, 2, 1), under_muon(CORE), torch.float64, STEPS, {}, native=True),
    "HSDP and tensor parallelism": Job((2, 2, 2), under_muon(CORE), torch.float64, STEPS, {}, native=True),
    "replicate_mesh": Job((3, 1, 1), under_muon(PLAIN), torch.float64, STEPS, {}, declared=True),
    "replicate_mesh, fewer matrices than ranks": Job(
        (3, 1, 1), under_muon(PLAIN[1:]), torch.float64, STEPS, {}, declared=True
    ),
    "replicate_mesh beside FSDP2": Job((2, 2, 1), under_muon(CORE), torch.float64, STEPS, {}, declared=True),
    "replicate_mesh, larger than the copies on a mesh": Job(
        (3, 1, 2), under_muon(CORE), torch.float64, STEPS, {}, declared=True
    ),
}


@pytest.mark.filterwarnings("ignore:.*is one of:UserWarning")
@pytest.mark.parametrize("job", SHARING.values(), ids=SHARING)
def test_copies_with_averaged_gradients_share_the_steps_of_one_process_and_stay_equal_in_every_bit(job: Job) -> None:
    runs = run_ranks(run_job, math.prod(job.sizes), job)
    assert_equal_to_one_process(job, runs, one_process(job))
    assert len({bits(run) for run in runs}) == 1
    numel = sum(math.prod(role.shape) for role in members(job.roles))
    for run in runs:
        carried = {axis: count for axis, count in elements(run.stats["traffic"]).items() if count}
        assert {axis: job.steps * count for axis, count in run.stats["expected_traffic"].items() if count} == carried
        assert 0 < carried["dp"] <= job.steps * numel


def one_step(shapes: list[tuple[int, int]], rank: int, **meshes: Any) -> list[Tensor]:
    """Of matrices that begin at zero, by this rank's own gradients."""
    params = [Parameter(torch.zeros(shape, dtype=torch.float64)) for shape in shapes]
    for index, param in enumerate(params):
        param.grad = normal(shapes[index], torch.float64, rank, index)
    torchdion.Muon(params, **meshes).step()
    return [param.detach() for param in params]


def each_with_its_own_gradients(rank: int, world_size: int, shapes: list[tuple[int, int]]) -> list[Tensor]:
    """Though they are declared to be averaged."""
    return one_step(shapes, rank, replicate_mesh=dist.group.WORLD, replicate_mesh_grad_sync=False)


@pytest.mark.parametrize(
    ("ranks", "owned"), [(2, [(1, 4), (1, 3)]), (3, [(1, 0), (1, 0), (0, 7)]), (4, [(1, 0), (1, 0), (0, 4), (0, 3)])]
)
def test_one_of_the_copies_orthonormalizes_a_matrix_and_each_has_as_much_to_do(
    ranks: int, owned: list[tuple[int, int]]
) -> None:
    """Gradients that differ tell whose momentum a matrix has got. `owned`: large and small matrices of each rank."""
    shapes = [(24, 16)] * 2 + [(12, 8)] * 7
    runs = run_ranks(each_with_its_own_gradients, ranks, shapes)
    assert all(torch.equal(X, first) for run in runs for X, first in zip(run, runs[0], strict=True))
    alone = [one_step(shapes, rank) for rank in range(ranks)]
    owners = []
    for index, X in enumerate(runs[0]):
        (owner,) = (rank for rank in range(ranks) if (X - alone[rank][index]).norm() <= 1e-12 * X.norm())
        owners.append(owner)
    assert [(owners[:2].count(rank), owners[2:].count(rank)) for rank in range(ranks)] == owned


def with_zero_gradients(rank: int, world_size: int, **meshes: Any) -> list[Tensor]:
    """Of the second and the fifth of seven matrices, which are to stay as they are."""
    params = [Parameter(normal((12, 8), torch.float64, index)) for index in range(7)]
    group = {"params": params, "skip_zero_gradients": True}
    optimizer = torchdion.Muon([group], **meshes, **({"replicate_mesh": dist.group.WORLD} if world_size > 1 else {}))
    for step in range(STEPS):
        for index, param in enumerate(params):
            param.grad = normal((12, 8), torch.float64, step, index) * (index not in (1, 4))
        optimizer.step()
    return [param.detach() for param in params]


def test_copies_leave_a_matrix_without_gradient_as_it_is_whoever_owns_it() -> None:
    expected = with_zero_gradients(0, 1)
    for run in run_ranks(with_zero_gradients, 3, replicate_mesh_grad_sync=False):
        for index, (X, one) in enumerate(zip(run, expected, strict=True)):
            start = normal((12, 8), torch.float64, index)
            assert torch.equal(X, start) if index in (1, 4) else (X - one).norm() <= 1e-10 * (one - start).norm()


def with_copies_on_tp(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Routers, which no style of tensor parallelism cuts, as DTensors on its mesh."""
    for block in model.blocks:
        block.router.weight = Parameter(
            distribute_tensor(block.router.weight.detach(), mesh["tp"], [Replicate()], src_data_rank=None)
        )
    return model


def measured_and_planned(rank: int, world_size: int) -> list[tuple[dict[str, Any], Plan]]:
    """One step of a model, by what the optimizer then says of it and by this rank's plan."""
    found = []
    for sizes, precision in (((2, 2, 2), "medium"), ((2, 4, 1), "high"), ((1, 2, 4), "medium")):
        mesh = mesh_of(sizes)
        model = distribute(with_copies_on_tp(block_model(3, device="cpu"), mesh), mesh, "rows")
        for param in model.parameters():
            param.grad = param.detach().clone()
        optimizer = torchdion.Muon(torchdion.param_groups(model), precision=precision, replicate_mesh=mesh["dp"])
        optimizer.step()
        found.append((optimizer.stats(), torchdion.plan(model, mesh, precision=precision)))
    return found


@pytest.mark.long
def test_the_plan_equals_what_eight_processes_count() -> None:
    for rank, of_rank in enumerate(run_ranks(measured_and_planned, 8)):
        for stats, found in of_rank:
            cost = found.estimates["muon"].cost
            carried = {axis: count for axis, count in elements(stats["traffic"]).items() if count}
            assert cost.elements == carried == stats["expected_traffic"], rank
            sent = {
                axis: sum(counts["bytes"] for kind, counts in kinds.items() if kind != "agreement")
                for axis, kinds in stats["traffic"].items()
            }
            assert cost.bytes == {axis: count for axis, count in sent.items() if count}, rank
            assert cost.state_bytes == stats["state_bytes"], rank
