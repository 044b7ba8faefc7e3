"""What steps of Dion and Muon send on every mesh: counted, by the formula, by the paper's Table 2, and beside others.

    python benchmarks/traffic.py [--rank-fraction 0.25] [--orthonormalize rcqr] [--plot traffic.png]

The 72 matrices of a 120M GPT (12 layers, d = 768), on gloo processes of this machine. Query, key, value and the MLP's
first matrix are cut along their rows by tp, the others along their columns, the other side of each by fs; where tp is
1, fs cuts the rows, as FSDP2 does. dp holds copies with gradients of their own (`replicate_mesh`). One JSON line for
each mesh and axis, in elements that one step's collectives carry on rank 0, each with those of its full tensor there;
what goes to the owners of matrices and comes back counts once, as an all-reduce does:

    counted          of Dion, by the counters of the axis
    formula          what torchdion says before the step; counted / formula is `ratio`
    paper            Table 2 of arXiv 2504.05295
    megabytes        that rank 0 sends
    dense            all-reduce of the gradients over dp, as DistributedDataParallel does
    muon             of torchdion.Muon, by the counters; over its formula that is `muon ratio`
    mn               Table 2 of Muon: whole matrices over fs and tp, whole gradients over dp
    muon megabytes   that rank 0 sends, there and back
"""

import argparse
import datetime
import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from matrices import gpt_shapes
from measure import emit, table
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.nn import Parameter

import torchdion
from torchdion.planning.models import MODELS, first_stage

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MESHES = [(8, 1, 1), (1, 8, 1), (1, 1, 8), (2, 2, 2), (2, 1, 2), (2, 4, 1), (1, 2, 4)]  # (dp, fs, tp)
AXES = ("dp", "fs", "tp")
OVERSAMPLE = 1.25


def cuts(index: int, sizes: tuple[int, int, int]) -> tuple[int, int]:
    """The dimensions that fs and tp cut of the matrix of this place in its layer."""
    if sizes[2] == 1:
        return 0, 1
    return (1, 0) if index % 6 in (0, 1, 2, 4) else (0, 1)


def distributed(shape: tuple[int, int], cut: tuple[int, int], mesh: DeviceMesh) -> DTensor:
    """Random entries; this rank's piece alone is made."""
    placements: list[Placement] = [Shard(dim) if mesh.size(i) > 1 else Replicate() for i, dim in enumerate(cut)]
    local = list(shape)
    for i, dim in enumerate(cut):
        local[dim] //= mesh.size(i)
    return DTensor.from_local(torch.randn(local), mesh, placements)


def count(rank: int, sizes: tuple[int, int, int], store: str, options: dict[str, Any], out: str) -> None:
    """One step on one rank; rank 0 writes what its counters say."""
    torch.set_num_threads(1)
    world = math.prod(sizes)
    file = dist.FileStore(store, world)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=file, rank=rank, world_size=world, timeout=datetime.timedelta(minutes=10))
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=AXES)
    shards = mesh["fs", "tp"]
    torch.manual_seed(rank)
    params = []
    for index, shape in enumerate(gpt_shapes()):
        param = Parameter(distributed(shape, cuts(index, sizes), shards))
        param.grad = distributed(shape, cuts(index, sizes), shards)
        params.append(param)
    stats = {}
    dp = mesh["dp"]
    for optimizer in (torchdion.Dion(params, replicate_mesh=dp, **options), torchdion.Muon(params, replicate_mesh=dp)):
        optimizer.step()
        stats[type(optimizer).__name__] = optimizer.stats()
    if rank == 0:
        torch.save(stats, out)
    dist.barrier()
    dist.destroy_process_group()


def paper(sizes: tuple[int, int, int], rank_fraction: float, orientation: str) -> dict[str, int]:
    """Elements on a rank by axis: Table 2's Dion."""
    dp, fs, tp = sizes
    total = dict.fromkeys(AXES, 0)
    for index, (m, n) in enumerate(gpt_shapes()):
        r = math.ceil(rank_fraction * min(m, n))
        fs_dim, tp_dim = cuts(index, sizes)
        local = [m, n]
        local[fs_dim] //= fs
        local[tp_dim] //= tp
        inner_dim = 0 if orientation == "left" else 1  # the dimension whose cut cuts the rows of P
        inner = 2 * local[1 - inner_dim] * r + math.ceil(OVERSAMPLE * r) * r + r * r
        outer = (local[inner_dim] + 1) * r
        total["fs"] += (inner if fs_dim == inner_dim else outer) if fs > 1 else 0
        total["tp"] += (inner if tp_dim == inner_dim else outer) if tp > 1 else 0
        total["dp"] += (local[0] + local[1]) * r if dp > 1 else 0
    return total


def others(sizes: tuple[int, int, int]) -> dict[str, dict[str, int]]:
    """The same for what dense gradients and gathering whole matrices need, by `torchdion.plan`."""
    blocks = first_stage(MODELS["gpt-120m"]).get_submodule("blocks")
    estimates = torchdion.plan(blocks, dict(zip(AXES, sizes, strict=True)), fs_cuts="other").estimates
    elements = {name: estimates[key].cost.elements for name, key in (("dense", "adamw"), ("mn", "muon_gathering"))}
    return {name: {axis: by_axis.get(axis, 0) for axis in AXES} for name, by_axis in elements.items()}


def sent(kinds: dict[str, dict[str, int]]) -> tuple[int, float]:
    """Elements and megabytes of all kinds of collectives on an axis."""
    return sum(kind["elements"] for kind in kinds.values()), sum(kind["bytes"] for kind in kinds.values()) / 1e6


def measure(sizes: tuple[int, int, int], options: dict[str, Any]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/stats"
        arguments = (sizes, f"{folder}/store", options, out)
        mp.spawn(count, arguments, nprocs=math.prod(sizes))  # type: ignore[attr-defined, no-untyped-call]
        stats = torch.load(out, weights_only=True)
    by_formula = {"paper": paper(sizes, options["rank_fraction"], options["orientation"]), **others(sizes)}
    rows = []
    for axis, size in zip(AXES, sizes, strict=True):
        if size == 1:
            continue
        (counted, megabytes), (of_muon, muon_megabytes) = (sent(one["traffic"][axis]) for one in stats.values())
        formula = stats["Dion"]["expected_traffic"][axis]
        row = {
            "mesh": " ".join(f"{name} {size}" for name, size in zip(AXES, sizes, strict=True) if size > 1),
            "axis": axis,
            "counted": counted,
            "formula": formula,
            "ratio": counted / formula,
            **{name: elements[axis] for name, elements in by_formula.items()},
            "of paper": counted / by_formula["paper"][axis],
            "muon": of_muon,
            "muon ratio": of_muon / stats["Muon"]["expected_traffic"][axis],
            "of mn": of_muon / by_formula["mn"][axis],
            "megabytes": megabytes,
            "muon megabytes": muon_megabytes,
            **options,
        }
        rows.append(emit(row))
    return rows


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    from matplotlib import style

    with style.context("torchdion.figures"):
        _figure(rows).savefig(path, dpi=150)


def _figure(rows: list[dict[str, Any]]) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5))
    axes = figure.add_subplot()
    series = {
        "Dion, counted": "counted",
        "Dion, Table 2": "paper",
        "dense gradients": "dense",
        "Muon, counted": "muon",
        "Muon, Table 2": "mn",
    }
    width = 0.8 / len(series)
    for place, (label, column) in enumerate(series.items()):
        positions = [index + width * (place - (len(series) - 1) / 2) for index in range(len(rows))]
        axes.bar(positions, [row[column] / 1e6 for row in rows], width, label=label)
    axes.set_xticks(range(len(rows)), [f"{row['mesh']}\n{row['axis']}" for row in rows], rotation=45, fontsize=8)
    axes.set_ylabel("million elements per step and rank")
    figure.suptitle(f"120M GPT, r = {rows[0]['rank_fraction']:g} d")
    figure.legend(loc="outside lower center", ncols=len(series))
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank-fraction", type=float, default=0.25)
    parser.add_argument("--orientation", choices=("right", "left"), default="right")
    parser.add_argument("--orthonormalize", choices=("auto", "rcqr", "cholesky_qr"), default="rcqr")
    parser.add_argument("--plot", type=Path, help="a picture of the rows")
    arguments = parser.parse_args()
    options = {name: getattr(arguments, name) for name in ("rank_fraction", "orientation", "orthonormalize")}
    rows = [row for sizes in MESHES for row in measure(sizes, options)]
    columns = (
        *("mesh", "axis", "counted", "ratio", "of paper", "megabytes", "dense"),
        *("muon", "muon ratio", "of mn", "muon megabytes"),
    )
    print(table(rows, columns))
    if arguments.plot:
        plot(rows, arguments.plot)


if __name__ == "__main__":
    main()
