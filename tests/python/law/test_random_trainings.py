"""Random trainings on random meshes: every algorithm with any options and cuts takes the steps of one process.

`pytest tests/python/law/test_random_trainings.py --cases 5000` draws more of them, `--case SEED` one alone.
"""

import math
import random
from typing import Any

import pytest
import torch
from law import CONDITION, Absence, Job, Run, assert_equal_to_one_process, members, one_process, run_on_mesh
from ranks import run_ranks
from roles import Role

from torchdion.verification.observed import elements

SIZES = [(1, 2, 1), (1, 1, 3), (1, 2, 2), (1, 1, 5), (2, 1, 1), (3, 1, 1), (2, 2, 1), (2, 1, 2), (1, 3, 2), (2, 1, 3)]
"""Of (dp, fs, tp)."""
STARTS_PROCESSES = 10  # one case here for so many there
REJECTED = 0.2  # the share of cases that may be too ill-conditioned to compare

RANK_FRACTIONS = [0.1, 0.25, 0.7]
OF_ITERATIONS: dict[str, list[Any]] = {
    "rank_fraction": RANK_FRACTIONS,
    "rank_multiple_of": [1, 1, 4],
    "orientation": ["left", "right"],
    "orthonormalize": ["auto", "rcqr", "cholesky_qr"],
}
OF_NEWTON_SCHULZ: dict[str, list[Any]] = {"newton_schulz": ["auto", "polar_express", "jordan", "gram"]}
OPTIONS: dict[str, dict[str, list[Any]]] = {
    "dion": OF_ITERATIONS
    | {
        "nesterov": [True, False],
        "error_feedback": [True, True, False],
        "factorization": ["power_iteration"] * 3 + ["svd"],
        "residual": [None, "scaled", "sign"],
        "right_factor": ["normalized", "normalized", "orthonormal"],
    },
    "double_dion": OF_ITERATIONS | {"replicate_rank_fraction": RANK_FRACTIONS, "delayed": [False, True]},
    "muon": OF_NEWTON_SCHULZ | {"nesterov": [True, False]},
    "normuon": OF_NEWTON_SCHULZ | {"nesterov": [True, False]},
    "dion2": OF_NEWTON_SCHULZ | {"fraction": [0.1, 0.25, 0.7], "select": ["auto", "rows", "columns"]},
    "dion3": OF_NEWTON_SCHULZ | {"fraction": [0.1, 0.25, 0.7]},
    "demo": {"chunk_size": [3, 7, 8], "top_k": [2, 5]},
    "lion": {},
    "adamw": {},
}


def drawn_role(draw: random.Random, number: int, without: str, decoupled: bool) -> Role:
    algorithm = draw.choice([name for name in ("dion", *OPTIONS) if name != without])
    options = {name: draw.choice(values) for name, values in OPTIONS[algorithm].items()}
    if decoupled:
        options.pop("residual", None)
    options |= {"algorithm": algorithm, "cautious_wd": draw.random() < 0.2, "maximize": draw.random() < 0.2}
    if algorithm in ("lion", "adamw"):
        shape = tuple(draw.choice([1, 2, draw.randint(3, 20)]) for _ in range(draw.randint(1, 3)))
    else:
        shape = tuple(draw.choice([1, 2, draw.randint(3, 12), draw.randint(3, 40)]) for _ in range(2))
        form = draw.choice(["", "", "stack", "blocks", "fan-in first"])
        if form == "stack":
            shape, options["batch_dims"] = (draw.randint(1, 4), *shape), 1
        elif form == "blocks":
            options["blocks"] = draw.choice([2, 3])
            shape = (shape[0] * options["blocks"], shape[1])
        options["fan_in_first"] = form == "fan-in first"
    may_be_cut = [None, *range(1 if options.get("blocks", 1) > 1 else 0, len(shape))]
    fs, tp = draw.choice(may_be_cut), draw.choice(may_be_cut)
    return Role(f"{number}: {algorithm}", shape, fs, tp, draw.choice([1, 1, 3]), draw.random() < 0.1, options)


def drawn_job(seed: int) -> Job:
    draw = random.Random(seed)
    sizes = draw.choice(SIZES)
    way = draw.choice(["averages", "averages", "native", "declared"]) if sizes[0] > 1 else "averages"
    # What replicas of DeMo do together is not what one process does.
    decoupled = sizes[0] > 1 and way == "averages"
    without = "demo" if decoupled else ""
    roles = tuple(drawn_role(draw, number, without, decoupled) for number in range(draw.randint(1, 4)))
    absence = Absence(0.3 if way == "averages" and sizes[0] > 1 else 0.0, 0.3) if draw.random() < 0.3 else Absence()
    ways = {"native": way == "native", "declared": way == "declared"}
    return Job(sizes, roles, torch.float64, draw.randint(1, 4), {}, absence, **ways)


def run_jobs(rank: int, world_size: int, jobs: dict[int, Job]) -> dict[int, Run]:
    runs = {}
    for seed, job in jobs.items():
        try:
            runs[seed] = run_on_mesh(job)
        except Exception as error:
            raise RuntimeError(f"--case {seed}: {error!r}: {job}") from error
    return runs


def assert_law(job: Job, runs: list[Run]) -> None:
    assert_equal_to_one_process(job, runs, one_process(job))
    for index, role in enumerate(members(job.roles)):
        for rank, run in enumerate(runs):
            assert torch.equal(run.X[index], runs[0].X[index]), f"{role.name}: weights of ranks 0 and {rank}"
    for run in runs if job.absence == Absence() else []:
        carried = {axis: count for axis, count in elements(run.stats["traffic"]).items() if count}
        assert carried == {axis: job.steps * count for axis, count in run.stats["expected_traffic"].items() if count}


@pytest.mark.filterwarnings("ignore:.*is one of:UserWarning")  # options that only other algorithms have
def test_random_trainings_are_those_of_one_process(request: pytest.FixtureRequest) -> None:
    one, count = request.config.getoption("--case"), -(-request.config.getoption("--cases") // STARTS_PROCESSES)
    jobs = {seed: drawn_job(seed) for seed in (range(count) if one is None else [one])}
    compared = {seed: job for seed, job in jobs.items() if max(end.condition for end in one_process(job)) <= CONDITION}
    by_sizes: dict[tuple[int, int, int], dict[int, Job]] = {}
    for seed, job in compared.items():
        by_sizes.setdefault(job.sizes, {})[seed] = job
    for sizes, alike in by_sizes.items():
        by_rank = run_ranks(run_jobs, math.prod(sizes), alike)
        for seed, job in alike.items():
            try:
                assert_law(job, [runs[seed] for runs in by_rank])
            except AssertionError as failure:
                raise AssertionError(f"--case {seed}: {failure}: {job}") from failure
    assert len(compared) >= (1 - REJECTED) * len(jobs) or one is not None
