"""NorMuon, Dion2 and Dion3 on meshes: copies that share the work, ties, what travels."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from gathered import gathered
from law import Job, Run, assert_equal_to_one_process, bits, mesh_of, normal, one_process, run_on_mesh
from long_cases import some_of
from ranks import run_ranks
from roles import CORE, Role
from torch import Tensor
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn import Parameter

import torchdion
from torchdion.verification.observed import elements

STEPS = 4
SIBLINGS = ("normuon", "dion2", "dion3")
PLAIN = (Role("plain, tall", (24, 16), plain=True, count=7), Role("plain, wide", (9, 20), plain=True, count=2))


def under(algorithm: str, roles: tuple[Role, ...], **options: Any) -> tuple[Role, ...]:
    given = {"algorithm": algorithm, **options}
    return tuple(replace(role, options=role.options | given) for role in roles if role.is_dion)


def run_job(rank: int, world_size: int, job: Job) -> Run:
    return run_on_mesh(job)


WAYS: dict[str, tuple[tuple[int, int, int], tuple[Role, ...], dict[str, bool]]] = {
    "HSDP": ((2, 2, 1), CORE, {"native": True}),
    "HSDP and tensor parallelism": ((2, 2, 2), CORE, {"native": True}),
    "replicate_mesh": ((3, 1, 1), PLAIN, {"declared": True}),
    "replicate_mesh beside FSDP2": ((2, 2, 1), CORE, {"declared": True}),
}


@pytest.mark.parametrize("way", some_of(list(WAYS), ["HSDP", "replicate_mesh"]))
@pytest.mark.parametrize("algorithm", SIBLINGS)
def test_copies_with_averaged_gradients_share_the_steps_of_one_process_and_stay_equal_in_every_bit(
    algorithm: str, way: str
) -> None:
    sizes, roles, how = WAYS[way]
    job = Job(sizes, under(algorithm, roles), torch.float64, STEPS, {}, **how)
    runs = run_ranks(run_job, math.prod(sizes), job)
    assert_equal_to_one_process(job, runs, one_process(job))
    assert len({bits(run) for run in runs}) == 1
    for run in runs:
        carried = {axis: count for axis, count in elements(run.stats["traffic"]).items() if count}
        assert {axis: job.steps * count for axis, count in run.stats["expected_traffic"].items() if count} == carried


# ---- ties ----

M, N, K = 23, 14, 6
TIED = (2, 5, 7, 8, 11, 13, 16, 19, 22)
"""Rows that have the same entries in another order, and the largest norms."""


def tied_gradient() -> Tensor:
    G = normal((M, N), torch.float64, 1)
    for place, row in enumerate(TIED):
        G[row] = 10 * normal((N,), torch.float64, 2)[torch.randperm(N, generator=torch.Generator().manual_seed(place))]
    return G


def moved_rows(mesh: Any, placements: list[Any] | None, **options: Any) -> list[int]:
    """Which rows a step moves, of weights that begin at zero."""
    G = tied_gradient()
    across = options.get("select") == "columns"
    G = G.mT.contiguous() if across else G
    X = Parameter(torch.zeros_like(G))
    if placements is not None:
        X = Parameter(distribute_tensor(X.detach(), mesh, placements))
        G = distribute_tensor(G, mesh, placements)
    X.grad = G
    torchdion.Dion([{"params": [X], **options}], weight_decay=0.0).step()
    moved = gathered(X.detach())
    return (moved.mT if across else moved).abs().sum(1).nonzero().flatten().tolist()


CUTS = {
    "rows": ((1, 4, 1), [Replicate(), Shard(0)]),
    "columns": ((1, 1, 3), [Replicate(), Shard(1)]),
    "both": ((1, 2, 2), [Shard(0), Shard(1)]),
    "rows twice": ((1, 2, 3), [Shard(0), Shard(0)]),
}
OPTIONS = (
    {"algorithm": "dion2", "select": "rows", "fraction": (K - 0.5) / M},
    {"algorithm": "dion2", "select": "columns", "fraction": (K - 0.5) / M},
    {"algorithm": "dion3", "fraction": (K - 0.5) / M},
)


def moved_on_a_mesh(rank: int, world_size: int, sizes: tuple[int, int, int], placements: list[Any]) -> list[list[int]]:
    mesh = mesh_of(sizes)
    cuts = placements if sizes[2] > 1 and sizes[1] > 1 else [placements[1]]
    mesh = mesh["fs", "tp"] if len(cuts) == 2 else mesh["fs"] if sizes[1] > 1 else mesh["tp"]
    return [moved_rows(mesh, cuts, **options) for options in OPTIONS]


@pytest.mark.filterwarnings("ignore:.*is one of:UserWarning")
@pytest.mark.parametrize("cut", CUTS)
def test_of_tied_slices_the_first_are_chosen_on_every_layout(cut: str) -> None:
    sizes, placements = CUTS[cut]
    for found in run_ranks(moved_on_a_mesh, math.prod(sizes), sizes, placements):
        assert found == [list(TIED[:K])] * len(OPTIONS)


@pytest.mark.filterwarnings("ignore:.*is one of:UserWarning")
def test_of_tied_slices_the_first_are_chosen_by_one_process() -> None:
    for options in OPTIONS:
        assert moved_rows(None, None, **options) == list(TIED[:K])


# ---- traffic ----


def traffic_of_one_matrix(
    rank: int, world_size: int, sizes: tuple[int, int, int], options: dict[str, Any]
) -> dict[str, int]:
    """Of 5 matrices in one step, by the first rank's counters: elements that each axis carried."""
    role = Role("matrices", (M, N), 0, 1, count=5, options=options)
    return elements(run_on_mesh(Job(sizes, (role,), torch.float64, 1, {})).stats["traffic"])


def slots_on(side: int, ranks: int, k: int) -> int:
    return min(k, math.ceil(side / ranks))


@pytest.mark.parametrize(("fs", "tp"), [(4, 1), (1, 3), (2, 2), pytest.param(8, 1, marks=pytest.mark.long)])
@pytest.mark.parametrize("algorithm", ["dion2", "dion3"])
def test_norms_and_slots_travel_and_nothing_else(algorithm: str, fs: int, tp: int) -> None:
    """Norms of whole rows to all ranks of fs, of their parts to those of tp; slots to owners, min(k, rows of a piece);
    Dion3's squares of slots, as the norms of parts, and two numbers of each matrix."""
    options = {"algorithm": algorithm, "fraction": (K - 0.5) / M} | ({"select": "rows"} if algorithm == "dion2" else {})
    runs = run_ranks(traffic_of_one_matrix, fs * tp, (1, fs, tp), options)
    k, cols = slots_on(M, fs, K), math.ceil(N / tp)
    rows = math.ceil(M / fs)
    dion3 = algorithm == "dion3"
    of_tp = 5 * rows + (5 * k if dion3 else 0) + 5 * k * cols if tp > 1 else 0
    assert runs[0].get("tp", 0) == of_tp
    owned = math.ceil(5 / tp)  # of the columns' owners, who put rows together
    of_fs = 5 * M + owned * k * N + (5 * 2 if dion3 else 0) if fs > 1 else 0
    assert runs[0].get("fs", 0) == of_fs


def test_over_replicas_momenta_are_summed_and_slots_come_back() -> None:
    role = Role("matrices", (M, N), plain=True, count=5, options={"algorithm": "dion2", "select": "rows"})
    runs = run_ranks(run_job, 3, Job((3, 1, 1), (role,), torch.float64, 1, {}))
    k = math.ceil(M / 4)
    for run in runs:
        traffic = run.stats["traffic"]["dp"]
        assert traffic["reduce_scatter"]["elements"] == 5 * M * N
        assert traffic["all_gather"]["elements"] == 5 * k  # which rows
    # Rows of 5 matrices to two other ranks from their owners, beside which: less than a third of what went there.
    back = sum(run.stats["traffic"]["dp"]["completion"]["bytes"] for run in runs)
    assert back == 5 * k * N * 8 * 2
