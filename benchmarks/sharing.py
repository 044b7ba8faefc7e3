"""The time of a step of Muon on four ranks that share its work, against ranks that each repeat all of it.

    python benchmarks/sharing.py [--layers 2] [--width 768] [--rounds 7]

The matrices of a GPT on four gloo processes of one thread each. On every layout the same weights get the same
gradients, in turn with contenders that have all of them whole on each rank: `repeating`, whose gradients are averaged
already, and `averaging`, which sums them over the ranks first, as `replicas` does within its step. One JSON line for
each layout: `seconds` of the slowest rank, the median over rounds, and its `ratio` to either, to `averaging` only of
what sums too; then a table. With fewer cores than ranks all of them wait for their turn, which costs both sides of a
ratio alike: a quarter is what sharing alone would leave.
"""

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from matrices import Shape, gpt_shapes
from measure import emit, seconds, table
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn import Parameter

import torchdion
from torchdion.verification.launch import launch

RANKS = 4
GRADIENTS = 2  # taken in turn
WARM_UP = 2  # rounds: the first makes the state, and connections grow their buffers

Cut = Callable[[int], int]
"""The dimension of a matrix that the ranks cut, by its place in its layer."""


@dataclass(frozen=True)
class Layout:
    cut: Cut | None = None  # None: whole on every rank, whose gradients are the same
    copies: int = 1  # of the pieces, on a mesh dimension of their own
    grad_sync: bool | None = None  # None: the optimizer is told of no replicate_mesh
    averages: bool = False  # the gradients, before the step


LAYOUTS = {
    "repeating": Layout(),
    "averaging": Layout(averages=True),
    "FSDP2": Layout(lambda place: 0),
    "TP": Layout(lambda place: 0 if place % 6 in (0, 1, 2, 4) else 1),
    "HSDP": Layout(lambda place: 0, copies=2),
    "copies": Layout(grad_sync=False),
    "replicas": Layout(grad_sync=True),
}


def piece(whole: Tensor, layout: Layout, place: int, mesh: DeviceMesh) -> Tensor:
    if layout.cut is None:
        return whole
    return distribute_tensor(whole, mesh, [Replicate(), Shard(layout.cut(place))], src_data_rank=None)


def contender(
    layout: Layout, shapes: list[Shape], meshes: dict[int, DeviceMesh]
) -> tuple[torchdion.Muon, list[list[Tensor]]]:
    mesh = meshes[layout.copies]
    torch.manual_seed(0)
    params = [Parameter(piece(torch.randn(shape), layout, place, mesh)) for place, shape in enumerate(shapes)]
    gradients = [
        [piece(torch.randn(shape), layout, place, mesh) for place, shape in enumerate(shapes)] for _ in range(GRADIENTS)
    ]
    if layout.grad_sync is None:
        return torchdion.Muon(params), gradients
    world = dist.group.WORLD
    return torchdion.Muon(params, replicate_mesh=world, replicate_mesh_grad_sync=layout.grad_sync), gradients


def step(optimizer: torchdion.Muon, gradients: list[Tensor], layout: Layout) -> None:
    if layout.averages:
        sums = [dist.all_reduce(gradient, async_op=True) for gradient in gradients]
        for work, gradient in zip(sums, gradients, strict=True):
            work.wait()
            gradient /= RANKS
    optimizer.step()


def measure(rank: int, shapes: list[Shape], rounds: int) -> dict[str, float]:
    """Of the slowest rank."""
    torch.set_num_threads(1)
    meshes = {
        copies: init_device_mesh("cpu", (copies, RANKS // copies), mesh_dim_names=("copies", "pieces"))
        for copies in sorted({layout.copies for layout in LAYOUTS.values()})
    }
    contenders = {name: contender(layout, shapes, meshes) for name, layout in LAYOUTS.items()}
    times: dict[str, list[float]] = {layout: [] for layout in LAYOUTS}
    for index in range(-WARM_UP, rounds):
        for layout, (optimizer, all_gradients) in contenders.items():
            gradients = all_gradients[index % GRADIENTS]
            for param, gradient in zip(optimizer.param_groups[0]["params"], gradients, strict=True):
                param.grad = gradient
            dist.barrier()
            took = torch.tensor(seconds(partial(step, optimizer, gradients, LAYOUTS[layout])), dtype=torch.float64)
            dist.all_reduce(took, dist.ReduceOp.MAX)
            if index >= 0:
                times[layout].append(took.item())
    return {layout: statistics.median(values) for layout, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=2, help="of the GPT")
    parser.add_argument("--width", type=int, default=768, help="of the GPT")
    parser.add_argument("--rounds", type=int, default=7, help="steps timed on each layout")
    arguments = parser.parse_args()
    shapes = gpt_shapes(arguments.layers, arguments.width)
    median: dict[str, float] = launch(measure, RANKS, (shapes, arguments.rounds), 3600.0)
    rows: list[dict[str, Any]] = []
    for layout, time in median.items():
        row = {"layout": layout, "ranks": RANKS, "seconds": time, "ratio": time / median["repeating"]}
        if LAYOUTS[layout].grad_sync:
            row["ratio_averaging"] = time / median["averaging"]
        rows.append(emit(row))
    print(table(rows, ("layout", "ratio", "ratio_averaging", "seconds")))


if __name__ == "__main__":
    main()
