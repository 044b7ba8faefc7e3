"""Collectives overlap with the products of other batches, and all ranks issue the same ones in the same order."""

from typing import Any, NamedTuple

import pytest
import torch
from law import HYPER, MESHES, Absence, Job, cut_by, groups_of, leaf, members, mesh_of, piece, set_gradients, weight
from long_cases import some_of
from ranks import run_ranks
from roles import CORE

import torchdion
from torchdion import _C

AXES = {"dp": (0,), "fs": (1,), "tp": (2,), "fs_tp": (1, 2)}  # the mesh dimensions along which ranks share a group
SIZES = pytest.mark.parametrize("sizes", some_of(MESHES[1:], [(2, 2, 2), (2, 3, 1)]))


class Traced(NamedTuple):
    coordinate: tuple[int, ...]
    steps: list[list[dict[str, Any]]]  # events of each step
    batches: int


def traced(rank: int, world_size: int, job: Job) -> Traced:
    mesh = mesh_of(job.sizes)
    every = enumerate(members(job.roles))
    of_params = cut_by(job, mesh)
    params = [leaf(piece(weight(index, role, job.dtype), role, of_params)) for index, role in every]
    replicas = {"replicate_mesh": mesh["dp"]} if job.averages else {}
    optimizer = torchdion.Dion(groups_of(job.roles, params), **HYPER, **job.options, **replicas)
    steps = []
    for step in range(job.steps):
        set_gradients(job, params, step, mesh)
        steps.append(_C.trace_of(optimizer.step))
        for param in params:
            param.requires_grad_(True)
    return Traced(tuple(mesh.get_coordinate()), steps, optimizer.stats()["batches"])


def run(sizes: tuple[int, int, int], absence: Absence) -> list[Traced]:
    job = Job(sizes, CORE, torch.float64, 4, {"rank_fraction": 0.25}, absence)
    return run_ranks(traced, sizes[0] * sizes[1] * sizes[2], job)


def issues(events: list[dict[str, Any]], axis: str) -> list[tuple[str, int]]:
    return [
        (event["kind"], event["elements"]) for event in events if event["what"] == "issue" and event["axis"] == axis
    ]


@SIZES
def test_ranks_of_a_group_issue_the_same_collectives_in_the_same_order_whatever_gradients_are_missing(
    sizes: tuple[int, int, int],
) -> None:
    ranks = run(sizes, Absence(of_replica=0.4 if sizes[0] > 1 else 0.0, of_all=0.3))
    for axis, dims in AXES.items():
        by_group: dict[tuple[int, ...], list[list[list[tuple[str, int]]]]] = {}
        for rank in ranks:
            others = tuple(place for dim, place in enumerate(rank.coordinate) if dim not in dims)
            by_group.setdefault(others, []).append([issues(events, axis) for events in rank.steps])
        for sequences in by_group.values():
            assert all(sequence == sequences[0] for sequence in sequences), axis
    assert any(event["what"] == "issue" for rank in ranks for events in rank.steps for event in events)


@SIZES
def test_products_of_another_batch_stand_between_a_collective_and_its_wait(sizes: tuple[int, int, int]) -> None:
    for rank in run(sizes, Absence()):
        assert rank.batches > 1
        in_flight, most, covered = set(), 0, 0
        for event in rank.steps[-1]:
            if event["what"] == "issue":
                in_flight.add(event["task"])
                most = max(most, len(in_flight))
            elif event["what"] == "wait":
                in_flight.discard(event["task"])
            elif event["what"] == "gemm":
                covered += bool(in_flight - {event["task"]})
        assert most > 1
        assert covered > 0
