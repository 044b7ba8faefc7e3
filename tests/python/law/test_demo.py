"""DeMo on meshes: replicas together are what their oracle says, whether or not shards are cut between chunks."""

import math
from dataclasses import replace

import pytest
import torch
from law import BOUND, HYPER, Job, Run, gradient, members, run_on_mesh, weight
from long_cases import some_of
from oracle import demo
from ranks import run_ranks
from roles import CORE, Role
from runs import error
from torch import Tensor
from trajectory import matrices

from torchdion.verification.observed import elements

STEPS = 4
DEMO = {"algorithm": "demo", "chunk_size": 8, "top_k": 5, "mu": 0.9}
ALIGNED = Role("cut between chunks", (48, 32), 0, 1, count=2)
FEW = Role("too few rows for four ranks", (5, 20), 1, 0)
ROLES = tuple(replace(role, options=DEMO) for role in (*CORE, ALIGNED, FEW) if role.is_dion)


def run_job(rank: int, world_size: int, job: Job) -> Run:
    return run_on_mesh(job)


def of_replicas(job: Job, index: int, role: Role) -> tuple[Tensor, list[Tensor]]:
    """The weights after all steps, and each replica's momentum."""
    X, momenta = weight(index, role, torch.float64), [torch.zeros(role.shape)] * job.sizes[0]
    for step in range(job.steps):
        gradients = [gradient(index, role, job.dtype, step, replica) for replica in range(job.sizes[0])]
        X, momenta = demo(X, momenta, gradients, HYPER["lr"], {**HYPER, **role.options})
    return X, momenta


@pytest.mark.parametrize("sizes", some_of([(3, 1, 1), (2, 2, 2), (2, 3, 1), (1, 1, 4)], [(3, 1, 1), (2, 2, 2)]))
def test_replicas_and_shards_are_those_of_the_oracle(sizes: tuple[int, int, int]) -> None:
    job = Job(sizes, ROLES, torch.float64, STEPS, {})
    runs = run_ranks(run_job, math.prod(sizes), job)
    for index, role in enumerate(members(ROLES)):
        X, momenta = of_replicas(job, index, role)
        for run in runs:
            assert error(run.X[index], X, weight(index, role, torch.float64)) <= BOUND[torch.float64], role.name
            assert torch.equal(run.X[index], runs[0].X[index]), role.name
            M = momenta[run.replica]
            assert (run.states[index]["momentum"] - M).norm() <= 1e-10 * M.norm(), role.name
    for run in runs:
        carried = {axis: count for axis, count in elements(run.stats["traffic"]).items() if count}
        assert carried == {axis: STEPS * count for axis, count in run.stats["expected_traffic"].items() if count}


def test_what_replicas_gather_is_a_place_and_a_value_for_each_coefficient_kept() -> None:
    role = Role("whole", (40, 20), plain=True, count=3, options=DEMO)
    [first, *_] = run_ranks(run_job, 2, Job((2, 1, 1), (role,), torch.float64, 1, {}))
    [X] = matrices(torch.zeros(role.shape), {"batch_dims": 0, "blocks": 1, "fan_in_first": False})
    chunks = math.ceil(X.shape[0] / 8) * math.ceil(X.shape[1] / 8)
    assert elements(first.stats["traffic"])["dp"] == 2 * 3 * chunks * 2 * DEMO["top_k"]


def test_cut_between_chunks_nothing_is_sent_along_the_cuts() -> None:
    role = replace(ALIGNED, options=DEMO)
    for run in run_ranks(run_job, 4, Job((1, 2, 2), (role,), torch.float64, 2, {})):
        assert not any(elements(run.stats["traffic"]).values())
