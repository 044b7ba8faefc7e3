"""A training remembers where it began."""

import torch
from ranks import run_ranks
from torch.distributed.device_mesh import init_device_mesh

from torchdion.verification.command import parser, trainings_of
from torchdion.verification.run import Run


def start_of(rank: int, world: int) -> None:
    words = ["--mesh", "tp=2", "--steps", "1", "--orientation", "right", "--orthonormalize", "auto"]
    [training] = trainings_of(parser().parse_args(words))
    run = Run(training, init_device_mesh("cpu", (1, 1, 2), mesh_dim_names=("dp", "fs", "tp")))
    before = {name: weight.clone() for name, weight in run.start.items()}
    run.train(0, 1)
    assert all(torch.equal(weight, before[name]) for name, weight in run.start.items())


def test_a_step_changes_nothing_of_the_start_also_of_weights_that_every_rank_has_whole() -> None:
    run_ranks(start_of, 2)
