"""The lines of ranks over which an optimizer's parameters are cut and averaged."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import Tensor

from torchdion import _C
from torchdion.dtensor import is_dtensor
from torchdion.meshes import Meshes, joined_group

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Axes:
    """One object for each line, whoever asks for it: parameters that share a line are updated and counted together."""

    def __init__(self, meshes: Meshes) -> None:
        self._meshes = meshes
        self._axes: dict[tuple[Any, ...], _C.Axis] = {}
        self._of_meshes: dict[DeviceMesh | None, list[_C.Axis]] = {}  # see of()

    @property
    def replicas(self) -> _C.Axis:
        """The ranks over which the optimizer averages; absent where it does not."""
        return self.of_replicate_mesh if self._meshes.averages else _C.Axis()

    @property
    def copies(self) -> _C.Axis:
        """The ranks of a replicate mesh over which gradients are averaged before the optimizer sees them."""
        return _C.Axis() if self._meshes.averages else self.of_replicate_mesh

    @property
    def of_replicate_mesh(self) -> _C.Axis:
        """All of its ranks, whoever averages over them."""
        line = self._meshes.replicas
        if line is None:
            return _C.Axis()
        size = line.group.size()
        key = (line.group.group_name, size, *range(size))  # as of a mesh dimension, which it may be
        if key not in self._axes:
            self._axes[key] = _C.Axis(line.group, name=line.name)
        return self._axes[key]

    def of(self, param: Tensor) -> list[_C.Axis]:
        """The lines of all ranks that hold a parameter too: of its mesh, whether they cut it or not, and of replicas.

        The same objects for all parameters.
        """
        mesh = param.device_mesh if is_dtensor(param) else None
        if mesh not in self._of_meshes:
            axes = [self.of_replicate_mesh]
            if mesh is not None:
                axes += [self.along(mesh, (dim,)) for dim in range(mesh.ndim) if mesh.size(dim) > 1]
            self._of_meshes[mesh] = [axis for axis in axes if not axis.absent]
        return self._of_meshes[mesh]

    def copies_of(self, mesh: "DeviceMesh", cutting: Collection[int]) -> _C.Axis:
        """Of this rank's piece of what these dimensions cut: the line along the others, or the replicate mesh of
        :attr:`copies`, if that is longer.

        A replicate mesh that also holds other pieces is meant for other parameters.
        """
        uncut = tuple(dim for dim in range(mesh.ndim) if dim not in cutting and mesh.size(dim) > 1)
        line = self._meshes.replicas
        own = frozenset(_ranks_along(mesh, uncut))
        if line is not None and not self.copies.absent and len(line.ranks) > len(own):
            others = frozenset(mesh.mesh.flatten().tolist()) - own
            if not line.ranks & others:
                return self.copies
        return self.along(mesh, uncut)

    def along(self, mesh: "DeviceMesh", mesh_dims: tuple[int, ...]) -> _C.Axis:
        """Of this rank, along these dimensions, of which the first makes the outermost cut; absent along none."""
        if not mesh_dims:
            return _C.Axis()
        dims = sorted(mesh_dims)
        group = self._group(mesh, dims)
        chunks = [mesh.size(dim) for dim in mesh_dims]
        pieces = []
        for rank in dist.get_process_group_ranks(group):
            coordinate = (mesh.mesh == rank).nonzero()[0].tolist()
            pieces.append(piece_index(chunks, [coordinate[dim] for dim in mesh_dims]))
        key = (group.group_name, *chunks, *pieces)
        if key not in self._axes:
            names = mesh.mesh_dim_names or tuple(f"mesh_dim_{dim}" for dim in range(mesh.ndim))
            axis_name = "_".join(names[dim] for dim in dims)
            self._axes[key] = _C.Axis(group, name=axis_name, chunks=chunks, pieces=pieces)
        return self._axes[key]

    def _group(self, mesh: "DeviceMesh", dims: list[int]) -> dist.ProcessGroup:
        """The group of the ranks along these dimensions; of several it is a new one, which they all create at once.

        Never mesh._flatten(): it makes torch gather twice-cut DTensors as if they were cut once, which misplaces
        uneven pieces.
        """
        if len(dims) == 1:
            return mesh.get_group(dims[0])
        return joined_group(_ranks_along(mesh, dims), [mesh.get_group(dim) for dim in dims])

    def traffic(self) -> dict[str, dict[str, dict[str, int]]]:
        """What the axes carried: by name of the axis, kind of collective and unit."""
        total: dict[str, dict[str, dict[str, int]]] = {}
        for axis in self._axes.values():
            for kind, counts in axis.traffic().items():
                sums = total.setdefault(axis.name, {}).setdefault(kind, dict.fromkeys(counts, 0))
                for unit, count in counts.items():
                    sums[unit] += count
        return total


def _ranks_along(mesh: "DeviceMesh", mesh_dims: Sequence[int]) -> tuple[int, ...]:
    """This rank's line along these dimensions: alone along none."""
    coordinate = mesh.get_coordinate() or ()
    line = tuple(slice(None) if dim in mesh_dims else index for dim, index in enumerate(coordinate))
    return tuple(mesh.mesh[line].flatten().tolist())


def piece_index(chunks: Sequence[int], coordinates: Sequence[int]) -> int:
    """Which piece is a rank's of a dimension that is cut into chunks[0], each of these into chunks[1], and so on."""
    index = 0
    for count, coordinate in zip(chunks, coordinates, strict=True):
        index = index * count + coordinate
    return index
