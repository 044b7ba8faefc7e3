"""Double Dion on meshes: both ranks above one, what replicas share, and what they send."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from law import (
    HYPER,
    Job,
    Run,
    assert_equal_to_one_process,
    gradient,
    leaf,
    members,
    mesh_of,
    one_process,
    piece,
    run_on_mesh,
    weight,
)
from long_cases import some_of
from ranks import run_ranks
from roles import CORE, Role

import torchdion
from torchdion.verification.observed import elements

STEPS = 4
OF_REPLICAS, OF_UPDATE = 0.1, 0.3


def under_double_dion(**options: Any) -> tuple[Role, ...]:
    own = {"algorithm": "double_dion", "replicate_rank_fraction": OF_REPLICAS, "rank_fraction": OF_UPDATE}
    return tuple(replace(role, options=role.options | own | options) for role in CORE if role.is_dion)


def run_job(rank: int, world_size: int, job: Job) -> Run:
    return run_on_mesh(job)


MANY = {"replicate_rank_fraction": 0.6, "rank_fraction": 0.7}  # replicas average gradients
Case = tuple[tuple[int, int, int], dict[str, Any]]
AT_ONCE: list[Case] = [
    ((2, 2, 2), {"orientation": "left"}),
    ((2, 2, 2), {"orientation": "right", "orthonormalize": "rcqr"}),
    ((2, 3, 1), {"orientation": "right"}),
    ((3, 1, 1), MANY),
]
DELAYED: list[Case] = [
    ((2, 2, 2), {"orientation": "left", "delayed": True}),
    ((2, 3, 1), {"orientation": "right", "orthonormalize": "rcqr", "delayed": True}),
    ((3, 1, 1), {**MANY, "delayed": True}),
    *((sizes, {"delayed": True}) for sizes in ((8, 1, 1), (1, 8, 1), (1, 1, 8))),
]


@pytest.mark.parametrize("case", some_of(AT_ONCE + DELAYED, [AT_ONCE[1], DELAYED[1]]))
def test_both_stages_on_a_mesh_are_those_of_one_process(case: Case) -> None:
    sizes, options = case
    job = Job(sizes, under_double_dion(**options), torch.float64, STEPS, {})
    assert_equal_to_one_process(job, run_ranks(run_job, math.prod(sizes), job), one_process(job))


def test_replicas_differ_in_the_momentum_of_the_first_stage_and_in_nothing_else() -> None:
    job = Job((2, 3, 1), under_double_dion(), torch.float32, 30, {})
    runs = run_ranks(run_job, 6, job)
    for index, role in enumerate(members(job.roles)):
        for run in runs:
            assert torch.equal(run.X[index], runs[0].X[index]), role.name
            for state in ("momentum", "Q", "replicate_Q"):
                assert torch.equal(run.states[index][state], runs[0].states[index][state]), (role.name, state)
        first, second = (
            next(run.states[index]["replicate_momentum"] for run in runs if run.replica == replica)
            for replica in (0, 1)
        )
        assert (first - second).norm() > 0.1 * first.norm(), role.name


def counted(rank: int, world_size: int) -> dict[str, tuple[dict[str, int], dict[str, int], tuple[int, ...]]]:
    """By the name of a role: what a step has sent and was to send, by axis, and this rank's piece."""
    mesh = mesh_of((2, 3, 1))
    found = {}
    for role in under_double_dion(orientation="right", orthonormalize="cholesky_qr"):
        params = [leaf(piece(weight(index, role, torch.float32), role, mesh["fs", "tp"])) for index in range(1)]
        for index, param in enumerate(params):
            G = gradient(index, role, torch.float32, 0, mesh.get_local_rank("dp"))
            param.grad = piece(G, role, mesh["fs", "tp"])
        group = {"params": params, **role.options}
        optimizer = torchdion.Dion([group], replicate_mesh=mesh["dp"], **HYPER)
        optimizer.step()
        stats = optimizer.stats()
        local = params[0].to_local() if hasattr(params[0], "to_local") else params[0]
        found[role.name] = elements(stats["traffic"]), stats["expected_traffic"], tuple(local.shape)
    return found


@pytest.mark.filterwarnings("ignore:.*is one of:UserWarning")
def test_replicas_exchange_factors_of_the_smaller_rank_and_shards_sum_those_of_both() -> None:
    """Algorithm 4 on FSDP's rows: (m + n) r₁ elements over dp, (n + 1) r for each rank r over fs (arXiv 2504.05295,
    Table 2)."""
    shapes = {role.name: role for role in under_double_dion()}
    for found in run_ranks(counted, 6):
        for name, (sent, expected, local) in found.items():
            role = shapes[name]
            ranks = [math.ceil(fraction * min(role.shape) - 1e-9) for fraction in (OF_REPLICAS, OF_UPDATE)]
            assert {axis: count for axis, count in sent.items() if count} == {
                axis: count for axis, count in expected.items() if count
            }, name
            m, n = local
            largest = [-(-size // 3) if dim == role.fs else size for dim, size in enumerate(role.shape)]
            compresses = sum(largest) * ranks[0] < math.prod(largest)
            if role.fs is None:  # the mean of P₁ and R₁, whichever rank orthonormalizes
                assert sent["dp"] == ((m + n) * ranks[0] if compresses else m * n), name
            elif role.fs == 0:
                assert sent["fs"] == sum((n + 1) * r for r in ranks), name
