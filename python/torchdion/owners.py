"""Under ``owners="shard"`` ranks share out the states of parameters that all of them have whole."""

from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parameter import is_lazy

from torchdion.dtensor import is_dtensor
from torchdion.meshes import Meshes
from torchdion.mixed_precision import DTYPES
from torchdion.parameters import describe, form_of, tensor_of
from torchdion.table import algorithm_of
from torchdion.words import front


def check_owners(entries: list[Any], options: dict[str, Any], meshes: Meshes, where: str) -> None:
    """Raises ValueError where a group asks for owners that there cannot be."""
    if options["owners"] != "shard":
        return
    if meshes.replicas is None:
        raise ValueError(f"{front()}: owners='shard' needs a replicate_mesh, whose ranks share out the states{where}")
    for index, entry in enumerate(entries):
        param = tensor_of(entry)
        if _may_have_states(param, options):
            check_owned(param, describe(entry, index, where))


def _may_have_states(param: Tensor, group: dict[str, Any]) -> bool:
    """Reads only properties that last for a training, so that a parameter that is unfrozen later has a part already."""
    if param.dtype not in DTYPES or param.layout != torch.strided or param.is_nested:
        return False
    batch_dims, blocks, _ = form_of(group)
    if blocks == 1 or is_lazy(param) or not algorithm_of(param, group).takes_matrices:
        return True
    return param.shape[batch_dims] % blocks == 0


def check_owned(param: Tensor, name: str) -> None:
    """Raises ValueError for a parameter whose states cannot have owners."""
    if is_dtensor(param):
        raise ValueError(
            f"{front()}: {name} must be a plain tensor under owners='shard', got a DTensor; cut parameters have cut "
            "states without it"
        )
    if is_lazy(param):
        raise ValueError(
            f"{front()}: {name} must have a shape under owners='shard', got an uninitialized parameter; run a batch "
            "through the model before the optimizer is made"
        )


class SharesStates:
    """What the classes add whose states have owners wherever there are several processes."""

    algorithm: ClassVar[str]
    exchanges: ClassVar[str]

    _layouts: Any

    def _step_once(self) -> None:
        self._refuse_if_alone()
        super()._step_once()  # type: ignore[misc]

    def _look_at_groups(self, operation: str) -> None:
        self._refuse_if_alone()
        super()._look_at_groups(operation)  # type: ignore[misc]

    def _refuse_if_broken(self) -> None:
        super()._refuse_if_broken()  # type: ignore[misc]
        self._refuse_if_alone()

    def _refuse_if_alone(self) -> None:
        ranks = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        if self._layouts.meshes.replicas is None and ranks > 1:
            raise RuntimeError(
                f"{front()}: this optimizer was made before init_process_group(), and would train alone on each of the "
                f"{ranks} ranks; make it after, or give it a replicate_mesh"
            )


def with_owners() -> dict[str, type[SharesStates]]:
    """The classes of these, by the names that commands have for them."""
    return {f"dist_{made_by.algorithm}": made_by for made_by in SharesStates.__subclasses__()}


def sharing(replicate_mesh: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a class whose states have owners wherever there are several processes.

    Args:
        replicate_mesh: whose ranks share them out; None: all of the job.
        options: what else the class was given.
    """
    named_as_there = options.get("distributed_mesh")  # see dion_package.py
    if replicate_mesh is None and named_as_there is None and dist.is_available() and dist.is_initialized():
        replicate_mesh = dist.group.WORLD
    owners = "all" if replicate_mesh is None and named_as_there is None else "shard"
    return {"replicate_mesh": replicate_mesh, "owners": owners} | options
