"""How the parameters of a distributed job lie, read off their DTensors for the engine, and whether they may lie so."""

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch.distributed as dist
from torch import Tensor

from torchdion import _C
from torchdion.axes import Axes
from torchdion.by_cpu import goes_by_cpu
from torchdion.dtensor import Cuts, cuts_of, is_dtensor, local_piece
from torchdion.meshes import Meshes
from torchdion.parameters import form_of
from torchdion.table import algorithm_of, options_of
from torchdion.words import front

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor


class Piece(NamedTuple):
    """Of a parameter, this rank's: how the whole lies, the shape here, and which dimensions the layout's axes cut."""

    layout: _C.Layout
    shape: tuple[int, ...]
    sides: dict[str, int]


class Layouts:
    """The layouts of an optimizer's parameters.

    A layout is found by what it depends on (mesh, placements, shape and form), never by the parameter, which a wrapper
    may replace at any time. A copy of the optimizer starts with none, and with counters of its own.
    """

    def __init__(self, meshes: Meshes) -> None:
        self.meshes = meshes
        self.axes = Axes(meshes)
        self._pieces: dict[tuple[Any, ...], Piece] = {}
        self._plain: dict[bool, _C.Layout] = {}  # of what is no DTensor, by whether copies share its work
        self._moved: set[tuple[DeviceMesh | None, str]] = set()  # what _check_device() has found good

    def __deepcopy__(self, memo: dict[int, Any]) -> "Layouts":
        return Layouts(self.meshes)

    def __reduce__(self) -> tuple[type["Layouts"], tuple[Meshes]]:
        return Layouts, (self.meshes,)

    def of(self, param: Tensor, group: dict[str, Any], name: str) -> Piece:
        """Where a parameter lies. The first of its kind may create a process group, on every rank alike.

        Raises:
            ValueError: it is cut in a way that no algorithm can follow; the sentence names it.
        """
        piece = self.declared(param, group, name)
        self._check_device(param, name)
        found = local_piece(param, piece.shape).shape if is_dtensor(param) else piece.shape
        if found != piece.shape:
            raise ValueError(
                f"{front()}: this rank's piece of {name} of shape {tuple(param.shape)} must have the shape "
                f"{piece.shape}, as nested chunks have, got {tuple(found)}"
            )
        return piece

    def declared(self, param: Tensor, group: dict[str, Any], name: str) -> Piece:
        """The same by its placements alone, whatever this rank holds."""
        algorithm = algorithm_of(param, group)
        if not is_dtensor(param):
            return Piece(self._of_plain(algorithm.shares_among_copies or group["owners"] == "shard"), param.shape, {})
        key = (param.device_mesh, param.placements, param.shape, algorithm.name, *form_of(group))
        if key not in self._pieces:
            self._pieces[key] = self._read(param, group, name)
        return self._pieces[key]

    def _of_plain(self, shares_among_copies: bool) -> _C.Layout:
        if shares_among_copies not in self._plain:
            replicas = self.axes.replicas
            copies = self.axes.copies if shares_among_copies else _C.Axis()
            others = self.meshes.replicas is not None and _world_size() > replicas.size
            self._plain[shares_among_copies] = _C.Layout(replicas=replicas, copies=copies, has_averaged_copies=others)
        return self._plain[shares_among_copies]

    def _read(self, param: "DTensor", group: dict[str, Any], name: str) -> Piece:
        if param.device_mesh.get_coordinate() is None:
            raise ValueError(f"{front()}: {name} must lie on a mesh that holds this rank, got {param.device_mesh}")
        cuts = cuts_of(param, name)
        sides = sides_of(cuts, param, group, name)
        self._check_declared(cuts, param, name)
        self._check_replicas(param, name)
        axes = {side: self.axes.along(param.device_mesh, cuts[dim]) for side, dim in sides.items()}
        copies = _C.Axis()
        if algorithm_of(param, group).shares_among_copies:
            cutting = {mesh_dim for mesh_dims in cuts.values() for mesh_dim in mesh_dims}
            copies = self.axes.copies_of(param.device_mesh, cutting)
        return piece_of(param.shape, sides, axes, self.axes.replicas, copies, _world_size())

    def _check_device(self, param: Tensor, name: str) -> None:
        """The groups must move tensors like this one, if any, be it by the CPU: those of NCCL alone move none on it."""
        mesh, device = param.device_mesh if is_dtensor(param) else None, param.device
        if param.is_meta or (mesh, device.type) in self._moved:
            return
        line = self.meshes.replicas
        groups = [] if line is None else [line.group]
        if mesh is not None:
            groups += [mesh.get_group(dim) for dim in range(mesh.ndim) if mesh.size(dim) > 1]
        for group in groups:
            types = sorted({served.type for served in group._device_types})
            if device.type not in types and not goes_by_cpu(group, device.type):
                raise ValueError(
                    f"{front()}: {name} must lie on {' or '.join(types)}, whose tensors its process group moves, "
                    f"got {device}; the backend 'cpu:gloo,cuda:nccl' moves both"
                )
        self._moved.add((mesh, device.type))

    def _check_declared(self, cuts: Cuts, param: "DTensor", name: str) -> None:
        for mesh_dim in sorted(dim for dims in cuts.values() for dim in dims):
            ranks = dist.get_process_group_ranks(param.device_mesh.get_group(mesh_dim))
            if self.meshes.shards and not any(given.issuperset(ranks) for _, given in self.meshes.shards):
                declared = " and ".join(f"{mesh} of {sorted(given)}" for mesh, given in self.meshes.shards)
                raise ValueError(
                    f"{front()}: {name} must be cut by the declared meshes alone, {declared}, got a cut among the "
                    f"ranks {sorted(ranks)}"
                )

    def _check_replicas(self, param: "DTensor", name: str) -> None:
        """The ranks of a DTensor's mesh have another piece of it, or the same average gradient."""
        line = self.meshes.replicas
        if line is None or not self.meshes.averages:
            return
        shared = line.ranks & frozenset(param.device_mesh.mesh.flatten().tolist())
        if len(shared) > 1:
            raise ValueError(
                f"{front()}: replicate_mesh must hold copies that {name} does not know of, got the ranks "
                f"{sorted(shared)} of its own {param.device_mesh}, whose gradients torch averages; leave "
                "replicate_mesh out (or replicate_mesh_grad_sync=False), or fully_shard on the 1-D shard mesh"
            )


def _world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def piece_of(
    shape: tuple[int, ...],
    sides: dict[str, int],
    axes: dict[str, _C.Axis],
    replicas: _C.Axis,
    copies: _C.Axis,
    world_size: int,
) -> Piece:
    """Of a parameter of this shape whose dimensions ``sides`` are cut by ``axes`` in a job of so many ranks."""
    local = list(shape)
    for side, dim in sides.items():
        local[dim] = axes[side].piece(shape[dim])[1]
    ranks = replicas.size * math.prod(axis.size for axis in axes.values())
    layout = _C.Layout(
        **axes, replicas=replicas, copies=copies, sizes=list(shape), has_averaged_copies=world_size > ranks
    )
    return Piece(layout, tuple(local), sides)


def sides_of(cuts: Cuts, param: Tensor, group: dict[str, Any], name: str) -> dict[str, int]:
    """The dimension of the parameter that the axes rows, cols and batch of its layout cut."""
    if not algorithm_of(param, group).takes_matrices:
        if len(cuts) > 3:
            raise ValueError(f"{front()}: {name} must be cut on at most three dimensions, got {len(cuts)}")
        return dict(zip(("rows", "cols", "batch"), cuts, strict=False))
    return options_of(group).sides_of(list(param.shape), list(cuts), name)
