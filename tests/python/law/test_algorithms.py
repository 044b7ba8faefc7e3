"""The law for every algorithm of the table: its step on every mesh is that of one process, as its oracle has it."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from law import MESHES, Job, Run, assert_equal_to_one_process, members, one_process, run_on_mesh
from oracle import TRIED_WITH
from ranks import run_ranks
from roles import CORE, ROLES, Role

from torchdion.table import ALGORITHMS

STEPS = 4


def cases() -> Iterator[Any]:
    """In `make test` those of (1, 1, 1), and of (2, 2, 2) where no file of this folder is of the algorithm alone."""
    for algorithm, sizes in product(ALGORITHMS, MESHES):
        has_file = algorithm in ("dion", "muon", "double_dion", "demo")
        is_short = sizes == (1, 1, 1) or (sizes == (2, 2, 2) and not has_file)
        yield pytest.param(algorithm, sizes, id=f"{algorithm}-{sizes}", marks=() if is_short else pytest.mark.long)


def roles_of(algorithm: str, roles: tuple[Role, ...]) -> tuple[Role, ...]:
    """The roles that it can have, under it."""
    dims = 2 if ALGORITHMS[algorithm].takes_matrices else 0
    fitting = [role for role in roles if len(role.shape) - role.form["batch_dims"] >= dims]
    own = {"algorithm": algorithm, **TRIED_WITH.get(algorithm, {})}
    return tuple(replace(role, options=role.options | own) for role in fitting)


def run_job(rank: int, world_size: int, job: Job) -> Run:
    return run_on_mesh(job)


@pytest.mark.filterwarnings("ignore:.*is one of:UserWarning")  # options that only other algorithms have
@pytest.mark.parametrize(("algorithm", "sizes"), list(cases()))
def test_every_mesh_equals_one_process(algorithm: str, sizes: tuple[int, int, int]) -> None:
    roles = roles_of(algorithm, ROLES if sizes == (2, 2, 2) else CORE)
    has_mean = algorithm != "demo"  # of replicas: what they do together is what one process does (law/test_demo.py)
    job = Job(sizes, roles, torch.float64, STEPS, {"rank_fraction": 0.25}, native=not has_mean)
    dp, fs, tp = sizes
    runs = run_ranks(run_job, dp * fs * tp, job)
    assert_equal_to_one_process(job, runs, one_process(job))
    for index, role in enumerate(members(roles)):
        for rank, run in enumerate(runs):
            assert torch.equal(run.X[index], runs[0].X[index]), f"{role.name}: weights of ranks 0 and {rank}"
