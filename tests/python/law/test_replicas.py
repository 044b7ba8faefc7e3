"""Copies of a weight never drift: after many steps they are equal to the last bit, though their momenta are not."""

from dataclasses import replace

import pytest
import torch
from law import Job, Run, members, run_on_mesh
from ranks import run_ranks
from roles import ROLES

STEPS, FEW_STEPS = 200, 50  # in `make test-long`, in `make test`
NAMES = ("uneven", "columns cut by fs", "not cut", "rows cut twice", "bias", "embedding")
COPIED = tuple(replace(role, count=min(role.count, 3)) for role in ROLES if role.name in NAMES)
CASES = {
    "dp2-fs2-tp2-auto-left": ((2, 2, 2), "auto", "left"),
    "dp2-fs2-tp2-auto-right": ((2, 2, 2), "auto", "right"),
    "dp2-fs2-tp2-rcqr-left": ((2, 2, 2), "rcqr", "left"),
    "dp2-fs3-rcqr-right": ((2, 3, 1), "rcqr", "right"),
    "dp2-fs3-auto-right": ((2, 3, 1), "auto", "right"),
}


def run(rank: int, world_size: int, job: Job) -> Run:
    return run_on_mesh(job)


def assert_equal_bits(job: Job, runs: list[Run]) -> None:
    for index, role in enumerate(members(job.roles)):
        for rank, other in enumerate(runs):
            assert torch.equal(other.X[index], runs[0].X[index]), f"{role.name}: weights of ranks 0 and {rank}"
            assert role.is_dion == ("Q" in other.states[index])
            if role.is_dion:
                assert torch.equal(other.states[index]["Q"], runs[0].states[index]["Q"]), (
                    f"{role.name}: Q of rank {rank}"
                )


@pytest.mark.parametrize(
    ("sizes", "method", "orientation", "steps"),
    [
        *(pytest.param(*case, STEPS, id=name, marks=pytest.mark.long) for name, case in CASES.items()),
        pytest.param(*CASES["dp2-fs3-auto-right"], FEW_STEPS, id="dp2-fs3-auto-right-briefly"),
    ],
)
def test_compressed_replicas_stay_equal_to_the_last_bit_while_their_momenta_differ(
    sizes: tuple[int, int, int], method: str, orientation: str, steps: int
) -> None:
    options = {"orientation": orientation, "orthonormalize": method, "rank_fraction": 0.15}
    job = Job(sizes, COPIED, torch.float32, steps, options)
    runs = run_ranks(run, sizes[0] * sizes[1] * sizes[2], job)
    assert_equal_bits(job, runs)
    first, second = (next(one for one in runs if one.replica == replica) for replica in (0, 1))
    for index, role in enumerate(members(COPIED)):
        M, other = first.states[index]["momentum"], second.states[index]["momentum"]
        apart = torch.linalg.vector_norm(M - other) / torch.linalg.vector_norm(M)
        assert (apart > 0.1) == role.is_dion, f"{role.name}: the momenta are {apart:.1e} apart"


@pytest.mark.parametrize(
    ("sizes", "orientation"),
    [
        pytest.param((2, 2, 2), "left", id="dp2-fs2-tp2-left", marks=pytest.mark.long),
        pytest.param((2, 3, 1), "right", id="dp2-fs3-right", marks=pytest.mark.long),
    ],
)
def test_copies_with_averaged_gradients_stay_equal_to_the_last_bit(
    sizes: tuple[int, int, int], orientation: str
) -> None:
    job = Job(sizes, COPIED, torch.float32, STEPS, {"orientation": orientation, "rank_fraction": 0.25}, native=True)
    runs = run_ranks(run, sizes[0] * sizes[1] * sizes[2], job)
    assert_equal_bits(job, runs)
    for index, role in enumerate(members(COPIED)):
        first, last = (run.states[index]["momentum"] for run in (runs[0], runs[-1]))
        assert torch.equal(last, first), f"{role.name}: momentum"
