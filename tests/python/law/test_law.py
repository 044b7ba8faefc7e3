"""The law: a step on every mesh equals the step of one process with the mean gradient."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from law import MESHES, Absence, Job, Run, assert_equal_to_one_process, members, one_process, run_on_mesh
from long_cases import grid
from ranks import run_ranks
from roles import CORE, ROLES, Role

# Square factors B Q have large condition numbers; at full rank these roles have none, or small ones.
FULL_RANK = ("tall", "wide", "empty pieces", "rows cut twice", "columns cut twice", "experts, stack whole")

STEPS, FEW_STEPS = 20, 3  # in `make test-long`, in `make test`

ORIENTATIONS = {orientation: orientation for orientation in ("left", "right")}


def named(sizes: tuple[int, int, int]) -> str:
    return "dp{}-fs{}-tp{}".format(*sizes)


def cases() -> Iterator[Any]:
    """All for many steps; for a few all but two of eight ranks in one orientation, in turn, (2, 2, 2) in FP32 too."""
    for number, sizes in enumerate(MESHES):
        for orientation in (*ORIENTATIONS, "short"):
            for dtype in (torch.float64, torch.float32):
                name = f"{named(sizes)}-{orientation}-fp{torch.finfo(dtype).bits}"
                yield pytest.param(sizes, orientation, dtype, STEPS, id=name, marks=pytest.mark.long)
                is_in_turn = dtype == torch.float64 and orientation == ("left", "right", "short")[number % 3]
                is_in_turn = is_in_turn and sizes not in ((8, 1, 1), (1, 8, 1))
                if is_in_turn or (sizes == (2, 2, 2) and dtype == torch.float32 and orientation == "right"):
                    yield pytest.param(sizes, orientation, dtype, FEW_STEPS, id=f"{name}-briefly")


CASES = list(cases())


def jobs(sizes: tuple[int, int, int], dtype: torch.dtype, orientation: str, steps: int) -> dict[str, Job]:
    def job(rank_fraction: float, roles: tuple = ROLES, **kwargs) -> Job:
        options = {"orientation": orientation, "rank_fraction": rank_fraction}
        return Job(sizes, roles, dtype, steps, options, **kwargs)

    roles = roles_on(sizes, dtype)
    is_dense = sizes[0] > 1 and (steps == STEPS or sizes == (2, 2, 2))
    dense = {"dense": job(0.75, roles)} if is_dense else {}
    at_full_rank = {"full rank": job(1.0, tuple(role for role in ROLES if role.name in FULL_RANK))}
    return {"compressed": job(0.15, roles), **dense, **(at_full_rank if dtype == torch.float64 else {})}


def roles_on(sizes: tuple[int, int, int], dtype: torch.dtype) -> tuple[Role, ...]:
    return ROLES if dtype == torch.float64 and sizes in ((2, 2, 2), (2, 3, 1)) else CORE


def run_jobs(rank: int, world_size: int, jobs: dict[str, Job]) -> dict[str, Run]:
    return {name: run_on_mesh(job) for name, job in jobs.items()}


def assert_law(jobs: dict[str, Job]) -> dict[str, list[Run]]:
    dp, fs, tp = next(iter(jobs.values())).sizes
    by_rank = run_ranks(run_jobs, dp * fs * tp, jobs)
    runs = {name: [of_rank[name] for of_rank in by_rank] for name in jobs}
    for name, job in jobs.items():
        assert_equal_to_one_process(job, runs[name], one_process(job))
    return runs


@pytest.mark.parametrize(("sizes", "orientation", "dtype", "steps"), CASES)
def test_every_mesh_equals_one_process(
    sizes: tuple[int, int, int], orientation: str, dtype: torch.dtype, steps: int
) -> None:
    runs = assert_law(jobs(sizes, dtype, orientation, steps))
    roles = roles_on(sizes, dtype)
    for role, states in zip(members(roles), runs["compressed"][0].states, strict=True):
        if role.name in ("tall", "wide", "uneven"):
            m, n = role.shape
            assert states["Q"].shape[0] == {"left": n, "right": m, "short": max(m, n)}[orientation]


METHODS = {method: method for method in ("qr", "cholesky_qr", "rcqr")}


@pytest.mark.parametrize(("method", "orientation"), grid(METHODS, ORIENTATIONS, long=["cholesky_qr"]))
def test_every_method_equals_one_process(orientation: str, method: str) -> None:
    options = {"orientation": orientation, "orthonormalize": method, "rank_fraction": 0.25}
    roles = tuple(role for role in ROLES if method != "qr" or has_whole_rows_of_P(role, orientation))
    assert_law({method: Job((2, 2, 2), roles, torch.float64, FEW_STEPS, options)})


def has_whole_rows_of_P(role: Role, orientation: str) -> bool:
    """What "qr" needs: P has a row for each column of the matrix if "right", for each row if "left"."""
    first = role.form["batch_dims"]
    dim = first + ((orientation == "right") != role.form["fan_in_first"])
    return not role.is_dion or dim not in (role.fs, role.tp)


@pytest.mark.parametrize(
    ("sizes", "orientation"),
    grid({"dp2-fs2-tp2": (2, 2, 2), "dp3": (3, 1, 1), "fs3": (1, 3, 1)}, ORIENTATIONS),
)
def test_missing_gradients_count_as_zero_where_replicas_are_averaged_and_frozen_parameters_rest(
    sizes: tuple[int, int, int], orientation: str
) -> None:
    options = {"orientation": orientation, "rank_fraction": 0.25}
    absence = Absence(of_replica=0.4 if sizes[0] > 1 else 0.0, of_all=0.3)
    assert_law({"missing": Job(sizes, ROLES, torch.float64, FEW_STEPS, options, absence)})


@pytest.mark.parametrize(
    ("sizes", "orientation"),
    grid({"dp2-fs2-tp2": (2, 2, 2), "dp2-fs3": (2, 3, 1)}, ORIENTATIONS, long=["dp2-fs2-tp2"]),
)
def test_copies_with_averaged_gradients_equal_one_process(sizes: tuple[int, int, int], orientation: str) -> None:
    """Native HSDP: dp is a mesh dimension of the parameters, and the optimizer averages nothing."""
    options = {"orientation": orientation, "rank_fraction": 0.25}
    absence = Absence(of_all=0.3)
    assert_law({"native": Job(sizes, ROLES, torch.float64, FEW_STEPS, options, absence, native=True)})
