"""What the rank leaves, on every mesh whose replicas have the same momenta."""

import math
from typing import Any

import pytest
import torch
from law import Job, Run, assert_equal_to_one_process, one_process, run_on_mesh
from long_cases import some_of
from ranks import run_ranks
from roles import CORE, Role
from runs import normals

import torchdion
from torchdion.verification.observed import elements

STEPS = 4
LAYOUTS: dict[str, dict[str, Any]] = {
    "hsdp and tp": {"sizes": (2, 2, 2), "native": True},
    "averaged before": {"sizes": (2, 2, 1), "declared": True},
    # (m + n) r ≥ m n: replicas average gradients
    "dense replicas and tp": {"sizes": (2, 1, 2), "rank_fraction": 0.8},
    "dense replicas, fs and tp": {"sizes": (2, 2, 2), "rank_fraction": 0.8},
    "fs": {"sizes": (1, 3, 1)},
    "fs and tp": {"sizes": (1, 2, 3)},
    "tp": {"sizes": (1, 1, 8)},
    "hsdp": {"sizes": (2, 3, 1), "native": True},
}
OPTIONS: list[dict[str, Any]] = [
    {"residual": "scaled", "nesterov": True},
    {"residual": "sign", "right_factor": "orthonormal", "orientation": "left"},
    {"residual": "scaled", "right_factor": "orthonormal", "cautious_wd": True},
    {"residual": "sign", "nesterov": True},
    {"residual": "scaled", "orientation": "left"},
    {"residual": "scaled", "error_feedback": False, "orthonormalize": "rcqr"},
    {"residual": "sign", "nesterov": True, "error_feedback": False, "orthonormalize": "cholesky_qr"},
    {"right_factor": "orthonormal", "nesterov": True, "orthonormalize": "rcqr"},
]


def run_job(rank: int, world_size: int, job: Job) -> Run:
    return run_on_mesh(job)


@pytest.mark.filterwarnings("ignore:.*is one of:UserWarning")
@pytest.mark.parametrize("options", some_of(OPTIONS, OPTIONS[:2]), ids=str)
@pytest.mark.parametrize("layout", some_of(list(LAYOUTS), ["hsdp and tp", "dense replicas and tp"]))
def test_a_residual_on_a_mesh_is_that_of_one_process_and_sends_what_its_formula_says(
    layout: str, options: dict[str, Any]
) -> None:
    rest = dict(LAYOUTS[layout])
    fraction = rest.pop("rank_fraction", 0.25)
    job = Job(roles=CORE, dtype=torch.float64, steps=STEPS, options={"rank_fraction": fraction, **options}, **rest)
    runs = run_ranks(run_job, math.prod(job.sizes), job)
    assert_equal_to_one_process(job, runs, one_process(job))
    for run in runs:
        carried = {axis: count for axis, count in elements(run.stats["traffic"]).items() if count}
        assert carried == {axis: STEPS * count for axis, count in run.stats["expected_traffic"].items() if count}


@pytest.mark.parametrize("options", [{"residual": "sign"}, {"residual": "scaled", "cautious_wd": True}], ids=str)
def test_ranks_that_have_none_of_the_entries_take_part(options: dict[str, Any]) -> None:
    roles = tuple(role for role in CORE if role.name == "empty pieces")
    job = Job((1, 1, 8), roles, torch.float64, STEPS, {"rank_fraction": 0.25, **options})
    assert_equal_to_one_process(job, run_ranks(run_job, 8, job), one_process(job))


@pytest.mark.parametrize("options", [{"residual": "sign"}, {"residual": "scaled"}], ids=str)
def test_ranks_that_have_none_of_the_matrices_take_part(options: dict[str, Any]) -> None:
    stack = Role("fewer than ranks", (1, 12, 16), 0, None, 1, False, {"batch_dims": 1})
    job = Job((1, 2, 1), (stack,), torch.float64, STEPS, {"rank_fraction": 0.25, **options})
    assert_equal_to_one_process(job, run_ranks(run_job, 2, job), one_process(job))


def refuse(rank: int, world_size: int, residual: str) -> tuple[str, bool]:
    [begin, G] = normals(2, (24, 30), seed=3)
    X = torch.nn.Parameter(begin[0].clone())
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (world_size,), mesh_dim_names=("dp",))
    optimizer = torchdion.Dion([("w", X)], rank_fraction=0.25, residual=residual, replicate_mesh=mesh)  # type: ignore[arg-type]
    X.grad = G[0]
    with pytest.raises(ValueError) as caught:
        optimizer.step()
    return str(caught.value), torch.equal(X.detach(), begin[0])


@pytest.mark.parametrize("residual", ["scaled", "sign"])
def test_replicas_with_momenta_of_their_own_refuse_it_before_anything_is_written(residual: str) -> None:
    for said, kept in run_ranks(refuse, 2, residual):
        assert said == (
            f"torchdion.Dion: residual='{residual}' needs the same momentum on all replicas, and those of "
            "parameter 'w' (parameter group 0) keep momenta of their own: average gradients before the step, or leave "
            "it out"
        )
        assert kept
