"""What each rank of a job does to verify it."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from torchdion.verification.checks import Row, check, check_weights
from torchdion.verification.observed import observe
from torchdion.verification.paper import train_as_published
from torchdion.verification.run import Run, Training
from torchdion.verification.transport import barrier

AFTER = 5
"""Steps after a checkpoint."""


def verify(rank: int, trainings: list[Training], folder: Path) -> list[tuple[str, Row]]:
    """On each rank of the process group; rank 0 returns what was found, with the names of the trainings.

    Args:
        folder: of checkpoints, empty; that of rank 0 is used by all.
    """
    shared = [folder]
    dist.broadcast_object_list(shared)
    found: list[tuple[str, Row]] = []
    for index, training in enumerate(trainings):
        rows = _verify_training(rank, training, shared[0] / str(index))
        found.extend((training.name, row) for row in rows)
    return found


def _verify_training(rank: int, training: Training, folder: Path) -> list[Row]:
    """Rank 0 is the one process too, while the others wait for its checkpoint."""
    names, shape = zip(*asdict(training.sizes).items(), strict=True)
    mesh = init_device_mesh(training.device, shape, mesh_dim_names=names)
    steps = training.steps
    run = Run(training, mesh)
    observed = _gathered(observe(run, mesh))
    run.save(folder / "mesh")
    rows = []
    if rank == 0:
        alone = Run(training)
        alone.train(0, steps)
        rows = check(training, observed, alone.state(), train_as_published(training))
        alone.save(folder / "one")
        alone.train(steps, steps + AFTER)
        from_mesh = _resumed(Run(training), folder / "mesh")
        rows.append(check_weights("one process after the mesh's checkpoint", alone.state(), [from_mesh]))
    barrier()
    from_one = _gathered(_resumed(Run(training, mesh), folder / "one"))
    if rank == 0:
        rows.append(check_weights("mesh after one process's checkpoint", alone.state(), from_one))
    return rows


def _resumed(run: Run, folder: Path) -> dict[str, Any]:
    """The weights some steps after the checkpoint."""
    run.load(folder)
    run.train(run.training.steps, run.training.steps + AFTER)
    return run.weights()


def _gathered(observation: Any) -> list[Any]:
    """That of every rank, on rank 0."""
    gathered = [None] * dist.get_world_size()
    dist.gather_object(observation, gathered if dist.get_rank() == 0 else None)
    return gathered
