"""Muon on meshes: each kind of iteration, BF16 on the way to owners, and what pieces of whole matrices cost."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from law import Job, Run, assert_equal_to_one_process, members, mesh_of, one_process, run_on_mesh, weight
from plan_models import block_model, distribute
from ranks import run_ranks
from roles import CORE, Role

import torchdion
from torchdion.planning.plan import Plan
from torchdion.verification.observed import elements

STEPS = 4
MUON = {"algorithm": "muon"}


def under_muon(roles: tuple[Role, ...], **options: Any) -> tuple[Role, ...]:
    return tuple(replace(role, options=role.options | MUON | options) for role in roles if role.is_dion)


def run_job(rank: int, world_size: int, job: Job) -> Run:
    return run_on_mesh(job)


@pytest.mark.filterwarnings("ignore:.*is one of:UserWarning")  # options that only other algorithms have
@pytest.mark.parametrize(
    "options", [{"newton_schulz": "jordan", "adjust_lr": None}, {"newton_schulz": "gram"}], ids=str
)
def test_every_iteration_on_a_mesh_is_that_of_one_process(options: dict[str, Any]) -> None:
    job = Job((2, 2, 2), under_muon(CORE, **options), torch.float64, STEPS, {})
    assert_equal_to_one_process(job, run_ranks(run_job, 8, job), one_process(job))


@pytest.mark.filterwarnings("ignore:.*is one of:UserWarning")
@pytest.mark.parametrize("sizes", [(1, 2, 2), (2, 2, 1)], ids=str)
def test_layouts_agree_to_the_rounding_of_bf16_in_which_pieces_travel(sizes: tuple[int, int, int]) -> None:
    job = Job(sizes, under_muon(CORE), torch.float32, STEPS, {"precision": "medium"})
    exact = one_process(job)
    for run in run_ranks(run_job, math.prod(sizes), job):
        for index, role in enumerate(members(job.roles)):
            start = weight(index, role, torch.float64)
            distance = (run.X[index].double() - exact[index].X).norm() / (exact[index].X - start).norm()
            assert 1e-5 < distance < 0.1, (role.name, distance)


def measured_and_planned(rank: int, world_size: int) -> list[tuple[dict[str, Any], Plan]]:
    """One step of a model, by what the optimizer then says of it and by this rank's plan."""
    found = []
    for sizes, precision in (((2, 2, 2), "medium"), ((2, 4, 1), "high"), ((1, 2, 4), "medium")):
        mesh = mesh_of(sizes)
        model = distribute(block_model(3, device="cpu"), mesh, "rows")
        for param in model.parameters():
            param.grad = param.detach().clone()
        optimizer = torchdion.Muon(torchdion.param_groups(model), precision=precision, replicate_mesh=mesh["dp"])
        optimizer.step()
        found.append((optimizer.stats(), torchdion.plan(model, mesh, precision=precision)))
    return found


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
