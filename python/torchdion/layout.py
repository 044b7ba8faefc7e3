"""How the pieces of a parameter lie in a distributed job, read off its DTensor for the engine."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch.distributed as dist
from torch import Tensor

from torchdion import _C
from torchdion.dtensor import Cuts, cuts_of, is_dtensor, local_piece
from torchdion.meshes import Meshes, new_group
from torchdion.parameters import form_of
from torchdion.table import algorithm_of, options_of
from torchdion.words import front

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor


class Place(NamedTuple):
    """Where a parameter lies, the shape of this rank's piece, and which of its dimensions the layout's axes cut."""

    layout: _C.Layout
    shape: tuple[int, ...]
    sides: dict[str, int]


class Layouts:
    """The layouts of an optimizer's parameters, and the axes that they share.

    A layout is found by what it depends on (mesh, placements, shape and form), never by the parameter, which a wrapper
    may replace at any time. A copy of the optimizer starts with none, and with counters of its own.
    """

    def __init__(self, meshes: Meshes) -> None:
        self.meshes = meshes
        self._axes: dict[tuple[Any, ...], _C.Axis] = {}
        self._places: dict[tuple[Any, ...], Place] = {}
        self._plain: _C.Layout | None = None  # of what is no DTensor
        self._everyone: dict[DeviceMesh | None, list[_C.Axis]] = {}  # see axes_of()
        self._groups: dict[tuple[int, ...], dist.ProcessGroup] = {}  # of several mesh dimensions, by ranks
        self._moved: set[tuple[DeviceMesh | None, str]] = set()  # meshes, and types of devices that their groups serve

    def __deepcopy__(self, memo: dict[int, Any]) -> "Layouts":
        return Layouts(self.meshes)

    def __reduce__(self) -> tuple[type["Layouts"], tuple[Meshes]]:
        return Layouts, (self.meshes,)

    @property
    def averages(self) -> bool:
        """Whether the optimizer averages over replicas, who must all take part."""
        return not self.replicas.absent

    def of(self, param: Tensor, group: dict[str, Any], name: str) -> Place:
        """Where a parameter lies. The first of its kind may create a process group, on every rank alike.

        Raises:
            ValueError: it is cut in a way that no algorithm can follow; the sentence names it.
        """
        place = self.declared(param, group, name)
        self._check_device(param, name)
        found = local_piece(param, place.shape).shape if is_dtensor(param) else place.shape
        if found != place.shape:
            raise ValueError(
                f"{front()}: this rank's piece of {name} of shape {tuple(param.shape)} must have the shape "
                f"{place.shape}, as nested chunks have, got {tuple(found)}"
            )
        return place

    def declared(self, param: Tensor, group: dict[str, Any], name: str) -> Place:
        """The same by its placements alone, whatever this rank holds."""
        if not is_dtensor(param):
            return Place(self._of_plain(), param.shape, {})
        algorithm = algorithm_of(param, group).name
        key = (param.device_mesh, param.placements, param.shape, algorithm, *form_of(group))
        if key not in self._places:
            self._places[key] = self._read(param, group, name)
        return self._places[key]

    def axes_of(self, param: Tensor) -> list[_C.Axis]:
        """The lines of all ranks that hold a parameter: of its mesh, whether they cut it or not, and of replicas.

        The same objects for all parameters.
        """
        mesh = param.device_mesh if is_dtensor(param) else None
        if mesh not in self._everyone:
            axes = [self.replicas]
            if mesh is not None:
                axes += [self._axis(mesh, (dim,)) for dim in range(mesh.ndim) if mesh.size(dim) > 1]
            self._everyone[mesh] = [axis for axis in axes if not axis.absent]
        return self._everyone[mesh]

    def _of_plain(self) -> _C.Layout:
        if self._plain is None:
            replicas = self.replicas
            others = self.meshes.replicas is not None and _world_size() > replicas.size
            self._plain = _C.Layout(replicas=replicas, has_averaged_copies=others)
        return self._plain

    def traffic(self) -> dict[str, dict[str, dict[str, int]]]:
        """What the axes carried: by name of the axis, kind of collective and unit."""
        total: dict[str, dict[str, dict[str, int]]] = {}
        for axis in self._axes.values():
            for kind, counts in axis.traffic().items():
                sums = total.setdefault(axis.name, {}).setdefault(kind, dict.fromkeys(counts, 0))
                for unit, count in counts.items():
                    sums[unit] += count
        return total

    def _read(self, param: "DTensor", group: dict[str, Any], name: str) -> Place:
        if param.device_mesh.get_coordinate() is None:
            raise ValueError(f"{front()}: {name} must lie on a mesh that holds this rank, got {param.device_mesh}")
        cuts = cuts_of(param, name)
        sides = sides_of(cuts, param, group, name)
        self._check_declared(cuts, param, name)
        self._check_replicas(param, name)
        axes = {side: self._axis(param.device_mesh, cuts[dim]) for side, dim in sides.items()}
        return place_of(param.shape, sides, axes, self.replicas, _world_size())

    @property
    def replicas(self) -> _C.Axis:
        """The ranks over which the optimizer averages; absent where it does not."""
        line = self.meshes.replicas
        if line is None or not self.meshes.averages:
            return _C.Axis()
        key = (line.group.group_name,)
        if key not in self._axes:
            self._axes[key] = _C.Axis(line.group, name=line.name)
        return self._axes[key]

    def _axis(self, mesh: "DeviceMesh", mesh_dims: tuple[int, ...]) -> _C.Axis:
        dims = sorted(mesh_dims)
        group = self._group(mesh, dims)
        chunks = [mesh.size(dim) for dim in mesh_dims]
        places = []
        for rank in dist.get_process_group_ranks(group):
            coordinate = (mesh.mesh == rank).nonzero()[0].tolist()
            places.append(place_among(chunks, [coordinate[dim] for dim in mesh_dims]))
        key = (group.group_name, *chunks, *places)
        if key not in self._axes:
            names = mesh.mesh_dim_names or tuple(f"mesh_dim_{dim}" for dim in range(mesh.ndim))
            axis_name = "_".join(names[dim] for dim in dims)
            self._axes[key] = _C.Axis(group, name=axis_name, chunks=chunks, places=places)
        return self._axes[key]

    def _group(self, mesh: "DeviceMesh", dims: list[int]) -> dist.ProcessGroup:
        """The group of the ranks along these dimensions; of several it is a new one, which they all create at once.

        Never mesh._flatten(): it makes torch gather twice-cut DTensors as if they were cut once, which misplaces
        uneven pieces.
        """
        if len(dims) == 1:
            return mesh.get_group(dims[0])
        coordinate = mesh.get_coordinate()
        line = tuple(slice(None) if dim in dims else place for dim, place in enumerate(coordinate or ()))
        ranks = tuple(mesh.mesh[line].flatten().tolist())
        if ranks not in self._groups:
            self._groups[ranks] = new_group(ranks)
        return self._groups[ranks]

    def _check_device(self, param: Tensor, name: str) -> None:
        """The groups must move tensors like this one, if any: those of NCCL alone move none on the CPU."""
        mesh, device = param.device_mesh if is_dtensor(param) else None, param.device
        if param.is_meta or (mesh, device.type) in self._moved:
            return
        replicas = self.meshes.replicas
        groups = [] if replicas is None or self.replicas.absent else [replicas.group]
        if mesh is not None:
            groups += [mesh.get_group(dim) for dim in range(mesh.ndim) if mesh.size(dim) > 1]
        for group in groups:
            types = sorted({served.type for served in group._device_types})
            if device.type not in types:
                raise ValueError(
                    f"{front()}: {name} must lie on {' or '.join(types)}, whose tensors its process group moves, "
                    f"got {device}; the backend 'cpu:gloo,cuda:nccl' moves both"
                )
        self._moved.add((mesh, device.type))

    def _check_declared(self, cuts: Cuts, param: "DTensor", name: str) -> None:
        for mesh_dim in sorted(dim for dims in cuts.values() for dim in dims):
            ranks = dist.get_process_group_ranks(param.device_mesh.get_group(mesh_dim))
            if not self.meshes.declares(frozenset(ranks)):
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


def place_among(chunks: Sequence[int], coordinates: Sequence[int]) -> int:
    """Which piece is a rank's of a dimension that is cut into chunks[0], each of these into chunks[1], and so on."""
    place = 0
    for count, coordinate in zip(chunks, coordinates, strict=True):
        place = place * count + coordinate
    return place


def place_of(
    shape: tuple[int, ...], sides: dict[str, int], axes: dict[str, _C.Axis], replicas: _C.Axis, world_size: int
) -> Place:
    """Where a parameter of this shape lies whose dimensions ``sides`` are cut by ``axes`` in a job of so many ranks."""
    piece = list(shape)
    for side, dim in sides.items():
        piece[dim] = axes[side].piece(shape[dim])[1]
    ranks = replicas.size * math.prod(axis.size for axis in axes.values())
    layout = _C.Layout(**axes, replicas=replicas, sizes=list(shape), has_averaged_copies=world_size > ranks)
    return Place(layout, tuple(piece), sides)


def sides_of(cuts: Cuts, param: Tensor, group: dict[str, Any], name: str) -> dict[str, int]:
    """The dimension of the parameter that the axes rows, cols and batch of its layout cut."""
    if not algorithm_of(param, group).takes_matrices:
        if len(cuts) > 3:
            raise ValueError(f"{front()}: {name} must be cut on at most three dimensions, got {len(cuts)}")
        return dict(zip(("rows", "cols", "batch"), cuts, strict=False))
    options = options_of(group)
    for dim in cuts:
        _C.check_cut(dim, list(param.shape), options, name)
    return {side: dim for side, dim in _C.cuts_of_parameter(param.dim(), options).items() if dim in cuts}
