"""The ranks of a job as a grid with named sides, whether a DeviceMesh holds them or only a description does."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from torchdion import _C
from torchdion.axes import piece_index
from torchdion.torch_versions import HashStore
from torchdion.words import shown

DESCRIBED = ("dp", "fs", "tp")
"""What the sides may be called where parameters are plain tensors: replicas, fully sharded, tensor parallel."""

MOST_RANKS = 2**20
"""Of a description, whose ranks are all listed."""


class Grid:
    """Sides and the global rank at each coordinate, as one rank sees them; the last side is that of neighbours.

    Args:
        mesh: a DeviceMesh with dimension names, or sizes by name, of which this process takes the first rank.

    Raises:
        ValueError: no mesh, or one without names, or sizes that are no positive integers.
    """

    def __init__(self, mesh: DeviceMesh | Mapping[str, int]) -> None:
        if isinstance(mesh, DeviceMesh):
            if mesh.mesh_dim_names is None:
                raise ValueError(f"torchdion.plan: mesh must have mesh_dim_names, got {mesh}")
            self.sizes = dict(zip(mesh.mesh_dim_names, mesh.shape, strict=True))
            self._ranks = mesh.mesh.flatten().tolist()
            coordinate = mesh.get_coordinate()
            if coordinate is None:
                raise ValueError(f"torchdion.plan: mesh must hold this rank, got {mesh}")
            self.coordinate = dict(zip(self.sizes, coordinate, strict=True))
        else:
            self.sizes = _checked_sizes(mesh)
            self._ranks = list(range(self.size))
            self.coordinate = dict.fromkeys(self.sizes, 0)

    @property
    def size(self) -> int:
        return math.prod(self.sizes.values())

    @property
    def rank(self) -> int:
        return self._rank_at(self.coordinate)

    def ordered(self, names: Any) -> tuple[str, ...]:
        """Some of the sides, the outermost first."""
        return tuple(name for name in self.sizes if name in names)

    def coordinates(self, names: tuple[str, ...]) -> list[dict[str, int]]:
        """Of each rank of this rank's line along these sides, in the order of ranks."""
        return [
            dict(zip(names, coordinates, strict=True))
            for coordinates in itertools.product(*(range(self.sizes[name]) for name in names))
        ]

    def line(self, names: tuple[str, ...]) -> list[int]:
        """The global ranks along these sides through this rank."""
        return [self._rank_at(self.coordinate | along) for along in self.coordinates(names)]

    def sides_of_axis(self, axis: str) -> tuple[str, ...]:
        """The sides whose names, joined, are that of an axis."""
        for count in range(1, len(self.sizes) + 1):
            for names in itertools.combinations(self.sizes, count):
                if "_".join(names) == axis:
                    return names
        raise ValueError(f"torchdion.plan: mesh must hold the mesh dimensions {axis!r}, got {self.sizes}")

    def axis(self, names: tuple[str, ...], chunks: Sequence[int] = (), pieces: Sequence[int] = ()) -> _C.Axis:
        """An axis along these sides, of a group that has ranks and no backend: it plans, and cannot send."""
        line = self.line(names)
        if len(line) == 1:
            return _C.Axis()
        group = ProcessGroup(HashStore(), line.index(self.rank), len(line))
        return _C.Axis(group, name="_".join(names), chunks=chunks, pieces=pieces)

    def _rank_at(self, coordinate: dict[str, int]) -> int:
        index = piece_index(list(self.sizes.values()), [coordinate[name] for name in self.sizes])
        return int(self._ranks[index])


def _checked_sizes(mesh: Any) -> dict[str, int]:
    if not isinstance(mesh, Mapping):
        raise ValueError(
            'torchdion.plan: mesh must be a DeviceMesh or sizes by name such as {"dp": 2, "fs": 8}, got '
            f"{shown(mesh)}"
        )
    sizes = dict(mesh)
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"torchdion.plan: the sizes of mesh must be integers ≥ 1, got {name}={shown(size)}")
    if math.prod(sizes.values()) > MOST_RANKS:
        raise ValueError(
            f"torchdion.plan: mesh must have at most {MOST_RANKS} ranks, got {shown(math.prod(sizes.values()))}"
        )
    check_described(tuple(sizes))
    return sizes


def check_described(names: tuple[str, ...]) -> None:
    """Raises ValueError for a mesh whose names do not say what it does to plain parameters."""
    for name in names:
        if name not in DESCRIBED:
            raise ValueError(
                f"torchdion.plan: the dimensions of mesh must be named {', '.join(DESCRIBED)} where parameters are "
                f"plain tensors, got {name!r}"
            )
