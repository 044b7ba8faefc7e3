"""Checkpoints of a run on many processes: folders of torch.distributed.checkpoint, which any mesh loads.

Each process writes its own pieces, so that no one ever holds the whole. Beside them lies what is no piece of anything:
step, schedule, recipe.
"""

import socket
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from checkpoint import UNFINISHED
from errors import Problem, writing
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.optim import Optimizer

from torchdion.optimizer import Optimizer as Torchdion

REST = "rest.pt"
PATIENCE = 60.0  # seconds until a file that another machine has written must be seen: NFS may remember its absence


def write(folder: Path, model: nn.Module, optimizer: Optimizer, rest: dict[str, Any]) -> None:
    """On all processes; `rest` is that of the first."""
    assert isinstance(optimizer, Torchdion)  # no other runs on many processes
    optimizer.synchronize_for_checkpoint()
    weights, states = get_state_dict(model, optimizer)
    try:
        save({"model": weights, "optimizer": states}, checkpoint_id=str(folder))
    except CheckpointException as error:  # on every process, whichever it was that could not write
        first, _ = next(iter(error.failures.values()))
        reason = first.strerror if isinstance(first, OSError) else str(first).partition("\n")[0]
        raise Problem(f"{folder} cannot be written: {reason}", code=1) from error

    def write_rest() -> None:
        files = {path.name: path.stat().st_size for path in folder.iterdir()}
        with (folder / REST).open("wb") as file:
            torch.save(rest | {"files": files}, file)

    on_first(folder, write_rest)


def on_first(path: Path, write: Callable[[], object]) -> None:
    """Lets the first process write; the others wait, and all hear what the file system refuses there.

    Raises:
        Problem: on every process: the disk is full, say. It names `path`.
    """
    sentence: list[str | None] = [None]
    if dist.get_rank() == 0:
        try:
            with writing(path):
                write()
        except Problem as problem:
            sentence = [str(problem)]
    dist.broadcast_object_list(sentence)
    if sentence[0] is not None:
        raise Problem(sentence[0], code=1)


def check_that_all_see(folder: Path) -> None:
    """On all processes: what the first writes into the folder, the others find there.

    Raises:
        Problem: on every process; it names the machine of one that does not.
    """
    name = [f"seen-by-all-{uuid.uuid4().hex}{UNFINISHED}"]
    dist.broadcast_object_list(name)
    mark = folder / name[0]

    def write_mark() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        mark.touch()

    on_first(mark, write_mark)
    machines: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(machines, None if _appears(mark) else socket.gethostname())
    on_first(mark, mark.unlink)
    blind = [machine for machine in machines if machine is not None]
    if blind:
        raise Problem(
            f"{folder} on {blind[0]} is not the folder that the first process sees; the machines of a run must share it"
        )


def _appears(path: Path) -> bool:
    deadline = time.monotonic() + PATIENCE
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def read_rest(folder: Path) -> dict[str, Any]:
    """What is no tensor of model or optimizer.

    Raises:
        ValueError: a file is missing or has another size than when it was written.
    """
    rest: dict[str, Any] = torch.load(folder / REST, map_location="cpu", weights_only=True)
    for name, size in rest.pop("files").items():
        if not (folder / name).exists() or (folder / name).stat().st_size != size:
            raise ValueError(f"{folder / name} is missing or damaged")
    return rest


def read(folder: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """On all processes of this job, which may be one, or others than those that wrote it."""
    weights, states = get_state_dict(model, optimizer)
    state: dict[str, Any] = {"model": weights, "optimizer": states}
    load(state, checkpoint_id=str(folder), no_dist=not dist.is_initialized())
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def distribute_weights(model: nn.Module, weights: dict[str, Any]) -> None:
    """Whole weights, as a run on one process saves them, to the pieces of this process."""
    set_model_state_dict(model, weights, options=StateDictOptions(full_state_dict=True))
