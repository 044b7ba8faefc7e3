"""Dion's ablations on meshes, and the algorithm of the April 2025 report, which has no TP axis."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from law import (
    HYPER,
    MESHES,
    Job,
    Run,
    assert_equal_to_one_process,
    gradient,
    members,
    one_process,
    run_on_mesh,
    weight,
)
from long_cases import some_of
from ranks import run_ranks
from roles import CORE, Role
from runs import error
from torch.nn import Parameter

import torchdion
from torchdion.verification.observed import elements

STEPS = 4
MU, LR = 0.95, 0.02


FURTHER = (
    {"factorization": "svd", "orientation": "left"},
    {"error_feedback": False, "cautious_wd": True},
    {"nesterov": True, "orientation": "right", "rank_fraction": 0.75},
    {"nesterov": True, "error_feedback": False, "factorization": "svd"},
)


def with_options(**options: Any) -> tuple[Role, ...]:
    return tuple(replace(role, options=role.options | options) for role in CORE if role.is_dion)


def run_job(rank: int, world_size: int, job: Job) -> Run:
    return run_on_mesh(job)


@pytest.mark.filterwarnings("ignore:.*is one of:UserWarning")
@pytest.mark.parametrize(
    "options",
    [
        {"factorization": "svd", "orientation": "right", "error_feedback": False},
        {"nesterov": True, "orientation": "left"},
        *[pytest.param(options, marks=pytest.mark.long) for options in FURTHER],
    ],
    ids=str,
)
@pytest.mark.parametrize("sizes", some_of([*MESHES, (1, 3, 1)], [(2, 2, 2)]))
def test_an_ablation_on_a_mesh_is_that_of_one_process_and_sends_what_its_formula_says(
    sizes: tuple[int, int, int], options: dict[str, Any]
) -> None:
    job = Job(sizes, with_options(**options), torch.float64, STEPS, {"rank_fraction": 0.25})
    runs = run_ranks(run_job, math.prod(sizes), job)
    assert_equal_to_one_process(job, runs, one_process(job))
    for run in runs:
        carried = {axis: count for axis, count in elements(run.stats["traffic"]).items() if count}
        assert carried == {axis: STEPS * count for axis, count in run.stats["expected_traffic"].items() if count}


def test_without_tp_it_is_the_algorithm_of_the_april_report_on_every_worker() -> None:
    """Algorithm 2 of the technical report: n is sharded over FS, each of the DP workers has a momentum of its own."""
    dp = fs = 2
    role = Role("matrix", (24, 30), fs=1, options={"orientation": "left"})
    job = Job((dp, fs, 1), (role,), torch.float64, STEPS, {"rank_fraction": 0.25})
    runs = run_ranks(run_job, dp * fs, job)

    m, n = role.shape
    shards = [slice(i * n // fs, (i + 1) * n // fs) for i in range(fs)]
    X = weight(0, role, torch.float64)
    begin, M, Q = X.clone(), torch.zeros(dp, m, n, dtype=torch.float64), first_factor(job)
    for step in range(STEPS):
        B = [M[j] + gradient(0, role, torch.float64, step, j) for j in range(dp)]
        P = sum(sum(B[j][:, shard] @ Q[shard] for shard in shards) for j in range(dp)) / dp
        P, _ = torch.linalg.qr(P)
        R = [sum(B[j][:, shard].mT @ P for j in range(dp)) / dp for shard in shards]
        for j in range(dp):
            for shard, R_i in zip(shards, R, strict=True):
                M[j][:, shard] = B[j][:, shard] - (1 - MU) * P @ R_i.mT
        c = sum(R_i.square().sum(0) for R_i in R).sqrt()
        Q = torch.cat([R_i / c for R_i in R])
        X = (1 - LR * 0.1) * X - LR * (m / n) ** 0.5 * P @ Q.mT
    for run in runs:
        assert error(run.X[0], X, begin) <= 1e-12
        assert error(run.states[0]["momentum"], M[run.replica], torch.zeros(m, n)) <= 1e-12


def first_factor(job: Job) -> torch.Tensor:
    """Q's start, which a step with zero gradients leaves as it is."""
    [role] = members(job.roles)
    X = Parameter(weight(0, role, job.dtype))
    X.grad = torch.zeros_like(X)
    optimizer = torchdion.Dion([{"params": [X], **role.options}], **HYPER, **job.options)
    optimizer.step()
    Q: torch.Tensor = optimizer.state[X]["Q"]
    return Q.clone()
