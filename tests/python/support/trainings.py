"""A small network and its optimizer on every layout that training uses; all layouts follow one trajectory."""

import math
from typing import Any, NamedTuple

import torch
from gathered import gathered
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import torchdion
from torchdion.optimizer import Optimizer
from torchdion.table import ALGORITHMS, OPTIONS

TENSOR_PARALLEL = {"up": ColwiseParallel(), "down": RowwiseParallel()}


class Network(nn.Module):
    """Matrices that no mesh here divides evenly, vectors, and an embedding under Lion."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = nn.Linear(12, 22)
        self.down = nn.Linear(22, 10, bias=False)
        self.odd = nn.Linear(13, 9)
        self.embedding = nn.Embedding(7, 5)
        self.norm = nn.LayerNorm(3)


class Layout(NamedTuple):
    name: str
    sizes: tuple[int, ...] = ()
    dims: tuple[str, ...] = ()

    @property
    def world_size(self) -> int:
        return math.prod(self.sizes)

    def __str__(self) -> str:
        return f"{self.name}{''.join(map(str, self.sizes))}"


LAYOUTS = (
    Layout("one"),
    Layout("ddp", (2,), ("dp",)),
    Layout("fsdp", (2,), ("fs",)),
    Layout("tp", (2,), ("tp",)),
    Layout("fsdp", (4,), ("fs",)),
    Layout("hsdp", (2, 2), ("dp", "fs")),
    Layout("fsdp-tp", (2, 2), ("fs", "tp")),
    Layout("compressed", (2, 2), ("dp", "fs")),
)

OWNERS = (Layout("owners", (2,), ("dp",)), Layout("owners", (3,), ("dp",)))
"""Of states that replicas share out, which not every algorithm lets them do."""

CAN_HAVE_OWNERS = OPTIONS["owners"]["algorithms"]

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ALGORITHMS},
    "delayed double_dion": ("double_dion", {"delayed": True}),
    "dion with a residual": ("dion", {"residual": "sign", "nesterov": True, "right_factor": "orthonormal"}),
}
"""Algorithms with options that change what a checkpoint must hold, or might."""


class Training:
    """The network and its optimizer on a layout; all layouts follow one trajectory."""

    def __init__(
        self,
        layout: Layout,
        model: nn.Module | None = None,
        algorithm: str = "dion",
        of_its_class: bool = False,
        **options: Any,
    ) -> None:
        """One of the algorithm's class, where states have owners or it is asked for, else of Dion's."""
        algorithm, own = VARIANTS[algorithm]
        self.model = (model or Network()).double()
        self.mesh = init_device_mesh("cpu", layout.sizes, mesh_dim_names=layout.dims) if layout.sizes else None
        self.averages = layout.name in ("compressed", "owners")
        if self.mesh is not None:
            self._distribute(layout, self.mesh)
        replicas = {"replicate_mesh": self.mesh["dp"]} if self.averages and self.mesh is not None else {}
        groups = torchdion.param_groups(self.model)
        for group in groups:  # `algorithm` in the place of Dion, or of all if it takes elements
            if "algorithm" not in group or not ALGORITHMS[algorithm].takes_matrices:
                group |= {"algorithm": algorithm, **own}
        has_owners = layout.name == "owners"
        made_by: Any = Optimizer.of(algorithm) if has_owners or of_its_class else torchdion.Dion
        if has_owners:
            options = {"owners": "shard", **options}
        if made_by is torchdion.Dion:
            options = {"rank_fraction": 0.25, **options}
        self.optimizer: Any = made_by(groups, **{"lr": 0.05, **options}, **replicas)

    def _distribute(self, layout: Layout, mesh: DeviceMesh) -> None:
        if layout.name == "ddp":
            DistributedDataParallel(self.model, device_mesh=mesh)
        if "tp" in layout.dims:
            parallelize_module(self.model, mesh["tp"], TENSOR_PARALLEL)
        if "fs" in layout.dims:
            shards = mesh if layout.name in ("fsdp", "hsdp") else mesh["fs"]
            fully_shard(self.model, mesh=shards)

    def run(self, start: int, stop: int) -> None:
        for step in range(start, stop):
            for index, param in enumerate(self.model.parameters()):
                param.grad = self._gradient(param, index, step)
            self.optimizer.step()

    def _gradient(self, param: Tensor, index: int, step: int) -> Tensor:
        """Replicas that the optimizer averages have gradients of their own, whose mean all layouts share."""
        generator = torch.Generator().manual_seed(1000 * step + index)
        mean, apart = torch.randn((2, *param.shape), generator=generator, dtype=torch.float64)
        if self.averages and self.mesh is not None:
            mean = mean + apart * (self.mesh["dp"].size() - 1 - 2 * self.mesh.get_local_rank("dp"))
        if not isinstance(param, DTensor):
            return mean
        return distribute_tensor(mean, param.device_mesh, param.placements, src_data_rank=None)

    def weights(self) -> list[Tensor]:
        return [gathered(param) for param in self.model.parameters()]
