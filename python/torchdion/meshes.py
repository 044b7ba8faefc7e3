"""The groups that a user names: which ranks hold copies of a parameter, and which may hold its pieces."""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from torchdion.torch_versions import GroupName, naming_groups, resolve_process_group, timeout_of
from torchdion.words import front, shown


@dataclass(frozen=True)
class Line:
    """A process group by the name that stats and errors call it. A pickle keeps its name alone."""

    group: ProcessGroup
    name: str

    @property
    def ranks(self) -> frozenset[int]:
        return frozenset(dist.get_process_group_ranks(self.group))

    def __reduce__(self) -> tuple[Callable[..., "Line"], tuple[str, frozenset[int], str]]:
        return _find_line, (self.group.group_name, self.ranks, self.name)


def _find_line(group_name: str, ranks: frozenset[int], name: str) -> Line:
    """The line of the group that has this name in this process, where it must hold the same ranks."""
    try:
        line = Line(resolve_process_group(GroupName(group_name)), name)
    except (RuntimeError, ValueError):
        line = None
    if line is None or line.ranks != ranks:
        raise RuntimeError(
            f"{front()}: replicate_mesh {name!r} was the process group {group_name!r} of the ranks "
            f"{sorted(ranks)}, which this process does not have; make its meshes before unpickling the optimizer"
        )
    return line


@dataclass(frozen=True)
class Meshes:
    """What the optimizer is told of the job, beside what DTensors say.

    Args:
        replicas: the line of ranks that hold copies.
        averages: the optimizer averages over them, so their gradients may differ.
        shards: the ranks of each declared shard mesh, by argument, which alone may cut parameters; empty: any may.
    """

    replicas: Line | None = None
    averages: bool = True
    shards: tuple[tuple[str, frozenset[int]], ...] = ()


def read_meshes(replicate_mesh: Any, outer_shard_mesh: Any, inner_shard_mesh: Any, grad_sync: Any) -> Meshes:
    """Checks the arguments of these names; a replicate mesh of several dimensions is flattened, which is collective.

    Raises:
        ValueError: a mesh that is none, that this rank is no member of, or that shares ranks with another.
    """
    if not isinstance(grad_sync, bool):
        raise ValueError(f"{front()}: replicate_mesh_grad_sync must be True or False, got {shown(grad_sync)}")
    given = {
        "replicate_mesh": replicate_mesh,
        "outer_shard_mesh": outer_shard_mesh,
        "inner_shard_mesh": inner_shard_mesh,
    }
    ranks = {name: _ranks_of(mesh, name) for name, mesh in given.items() if mesh is not None}
    _check_disjoint(ranks)
    shards = tuple((name, ranks[name]) for name in ("outer_shard_mesh", "inner_shard_mesh") if name in ranks)
    return Meshes(None if replicate_mesh is None else _line_of(replicate_mesh), grad_sync, shards)


_made = 0
"""How many groups this process has made with :func:`new_group`, or more."""


@dataclass
class _Second:
    group: ProcessGroup
    is_taken: bool = True


# What optimizers have asked for, and later ones may have: no group can be closed that another rank may still wait for.
_joined: WeakKeyDictionary[ProcessGroup, dict[tuple[int, ...], ProcessGroup]] = WeakKeyDictionary()
_seconds: WeakKeyDictionary[ProcessGroup, list[_Second]] = WeakKeyDictionary()


def joined_group(ranks: Sequence[int], along: Sequence[ProcessGroup]) -> ProcessGroup:
    """That of :func:`new_group`, made once in a process: collectives of one thread come in one order on all ranks."""
    made = _joined.setdefault(along[0], {})
    if tuple(ranks) not in made:
        made[tuple(ranks)] = new_group(ranks, along)
    return made[tuple(ranks)]


def second_group(group: ProcessGroup, holder: object) -> ProcessGroup:
    """Another one of the same ranks, backends and time limit, which they all take at once, for the holder alone.

    When the holder is gone, the group is another's to take. Ranks need not be done with theirs at once: they agree on
    one that all of them have free, or make one.
    """
    seconds = _seconds.setdefault(group, [])
    taken = None
    if seconds:
        free = torch.tensor([not second.is_taken for second in seconds], dtype=torch.int32, device=_device_of(group))
        dist.all_reduce(free, dist.ReduceOp.MIN, group=group)
        taken = next((second for second, is_free in zip(seconds, free.tolist(), strict=True) if is_free), None)
    if taken is None:
        taken = _Second(new_group(dist.get_process_group_ranks(group), [group], like=group))
        seconds.append(taken)
    taken.is_taken = True
    weakref.finalize(holder, setattr, taken, "is_taken", False).atexit = False
    return taken.group


def _device_of(group: ProcessGroup) -> str:
    """Of tensors that its ranks may exchange."""
    served = [device.type for device in group._device_types]
    return "cpu" if "cpu" in served else served[0]


def new_group(ranks: Sequence[int], along: Sequence[ProcessGroup], like: ProcessGroup | None = None) -> ProcessGroup:
    """A group of these ranks, which they all make at once, whatever the others do.

    Where the default group is bound to a device (``init_process_group(device_id=...)``), torch would split that group's
    communicator, and every rank of the world would have to take part: those of another pipeline stage do not. And it
    would name it by what else a process has made, which need not be as much on all of these ranks: they agree on it.

    Args:
        along: groups that join all of these ranks, and none but them, when gone through one after the other.
        like: of whose backends and time limit it is; None: of the default group's.
    """
    global _made
    for group in along:
        most = torch.tensor(_made, device=_device_of(group))
        dist.all_reduce(most, dist.ReduceOp.MAX, group=group)
        _made = int(most)
    _made += 1
    backend, timeout = (None, None) if like is None else (dist.get_backend_config(like), timeout_of(like))
    order: dict[str, Any] = {} if list(ranks) == sorted(ranks) else {"sort_ranks": False}  # not in all versions
    world = dist.group.WORLD
    assert world is not None
    bound, world.bound_device_id = world.bound_device_id, None
    try:
        with naming_groups(f"torchdion {'_'.join(map(str, ranks))} {_made}"):
            made_group = dist.new_group(list(ranks), timeout, backend, use_local_synchronization=True, **order)
        assert isinstance(made_group, ProcessGroup)  # this rank is one of them
        return made_group
    finally:
        world.bound_device_id = bound


def _ranks_of(mesh: Any, name: str) -> frozenset[int]:
    if mesh is dist.GroupMember.NON_GROUP_MEMBER:  # what new_group() gives to the ranks outside
        raise ValueError(f"{front()}: {name} must be a group that this rank is a member of, and it is not")
    if not isinstance(mesh, (DeviceMesh, ProcessGroup)):
        raise ValueError(f"{front()}: {name} must be None, a DeviceMesh or a ProcessGroup, got {type(mesh).__name__}")
    ranks = mesh.mesh.flatten().tolist() if isinstance(mesh, DeviceMesh) else dist.get_process_group_ranks(mesh)
    if dist.get_rank() not in ranks:
        raise ValueError(
            f"{front()}: {name} must hold this rank, {dist.get_rank()}, got one of the ranks {sorted(ranks)}"
        )
    return frozenset(ranks)


def _check_disjoint(ranks: dict[str, frozenset[int]]) -> None:
    """Another rank holds a copy or another piece, along one mesh or the other."""
    for name, other in combinations(ranks, 2):
        shared = ranks[name] & ranks[other]
        if len(shared) > 1:
            raise ValueError(
                f"{front()}: {other} must share no rank but this one with {name}, got {sorted(shared)} in both"
            )


def _line_of(mesh: DeviceMesh | ProcessGroup) -> Line:
    if isinstance(mesh, ProcessGroup):
        return Line(mesh, "replicas")
    if mesh.mesh_dim_names is None and mesh.ndim > 1:
        raise ValueError(
            f"{front()}: replicate_mesh must have mesh_dim_names to be flattened, got {mesh.ndim} dimensions "
            "without names"
        )
    name = "_".join(mesh.mesh_dim_names or ("replicas",))
    return Line((mesh if mesh.ndim == 1 else mesh._flatten()).get_group(), name)
