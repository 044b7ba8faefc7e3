"""What a step asks of a GPU, listed without one: launches, bytes, operations, and the least time that they take.

    python benchmarks/gpu/predicted.py [--list 120m 1.3b 3b] [--optimizer Dion Muon NorMuon Dion2 Dion3 AdamW Lion]
        [--rank d/4 d/16 d] [--precision high medium] [--nesterov] [--residual none scaled sign] [--no-error-feedback]
        [--right-factor orthonormal] [--cublas-alone] [--least-share 0.01] [--write FOLDER]

The step is one after others, with FP32 states. It runs on Meta tensors, through the
operations on CUDA as the tests compile them (`make test-cpp`, or --library), which record what they would launch. JSON
lines, each with `list`, `optimizer`, `state`, of Dion `rank` and `precision`, and those of its other options that are
not the default:

    kind "predicted"          one for each kernel, by the name that the rows of gpu_profile.py have: how often it is
                              launched, the blocks, bytes and operations of all its launches, `least_ms` of all
    kind "predicted_product"  products of m×k and k×n matrices as cuBLAS sees them, `count` at once, `given` as a stack
                              or by pointers: those whose `share` of the step's least_ms is --least-share or more
    kind "predicted_step"     the sums; `batches` of matrices that are updated together; `fp64_operations` of products;
                              `least_bytes` (of Dion of passes over whole matrices, of the others of all that they
                              cannot do without: gpu_lists.least_bytes_of()), and the bytes of all launches over them;
                              of Dion `roofline_ms` of the whole step; memory that the step allocates, and its
                              `peak_bytes` over those of the parameters

`least_ms` of a launch is the longer of its bytes over the bandwidth and its operations over the rate of its arithmetic,
both from the datasheet; launching and waiting are not in it. Symmetric products in BF16 are those of the library's own
kernel, which computes a half; with --cublas-alone (TORCHDION_SYMMETRIC_PRODUCTS=0) they are whole. --write makes
predicted.jsonl and predicted.md anew in a folder: benchmarks/results/gpu has those of this version.
"""

import argparse
import ctypes
import json
import os
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from gpu_lists import LISTS, RANKS, bytes_of_passes, groups_of, least_bytes_of, least_ms
from kernel_names import KERNELS_OF_PRODUCTS
from matrices import Shape
from measure import emit, line_of, table
from torch.nn import Parameter

import torchdion
from torchdion import _C
from torchdion.options import Precision
from torchdion.table import options_of

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "build" / "package" / "tests" / "cpp" / "libtorchdion_emulated.so"
Row = dict[str, Any]
ALL_RANKS = {**RANKS, "d/8": 1 / 8, "d/32": 1 / 32}

# NVIDIA's datasheet of the H100 SXM5: operations per second without sparsity, bytes per second.
RATES = {"TF32": 494.7e12, "BF16": 989.4e12, "FP16": 989.4e12, "FP64": 66.9e12, "FP32": 66.9e12}
KERNELS = {name: RATES[arithmetic] for name, arithmetic in KERNELS_OF_PRODUCTS.items()}
OTHER_KERNELS = 33.5e12  # FP64 without tensor cores
BANDWIDTH = 3.35e12
SUMMED = ("launches", "blocks", "bytes", "operations", "least_ms")


def load(library: Path) -> None:
    """From then on Meta tensors have addresses, and steps on them are recorded."""
    if not library.exists():
        print(f"benchmarks/gpu/predicted.py: needs {library}, which `make test-cpp` builds", file=sys.stderr)
        sys.exit(2)
    os.environ["TORCHDION_TEST_BACKEND"] = "emulated-recording"
    ctypes.CDLL(str(library))


OTHERS = {
    "Muon": torchdion.Muon,
    "NorMuon": torchdion.NorMuon,
    "Dion2": torchdion.Dion2,
    "Dion3": torchdion.Dion3,
    "AdamW": torchdion.AdamW,
    "Lion": torchdion.Lion,
}
STEPS_BEFORE = 3  # after which lists of pointers lie on the device, wherever the allocator puts what is listed
# A kernel that is launched once for each batch of matrices.
OF_EACH_BATCH = ("ColumnNormalize", "FrobeniusFactors", "AdamW", "Lion")


def other_optimizer_of(name: str, shapes: list[Shape]) -> torch.optim.Optimizer:
    """With gradients."""
    params = [Parameter(torch.empty(shape, device="meta")) for shape in shapes]
    for param in params:
        param.grad = torch.empty_like(param)
    made: torch.optim.Optimizer = OTHERS[name](params)
    return made


def optimizer_of(shapes: list[Shape], fraction: float, precision: Precision, **options: Any) -> torchdion.Dion:
    """Dion with gradients and state, as after a first step."""
    params = [Parameter(torch.empty(shape, device="meta")) for shape in shapes]
    optimizer = torchdion.Dion(params, rank_fraction=fraction, precision=precision, **options)
    [group] = optimizer.param_groups
    for param in params:
        param.grad = torch.empty_like(param)
        sizes = options_of(group).piece_of_state_sizes(param.shape, param.shape, _C.Layout())
        Q = torch.empty(sizes["Q"], device="meta")
        optimizer.state[param] = {"step": torch.ones(()), "momentum": torch.empty_like(param), "Q": Q}
    return optimizer


def with_least_ms(row: Row) -> Row:
    rate = RATES[row["name"].split()[1]] if "m" in row else KERNELS.get(row["name"], OTHER_KERNELS)
    return {**row, "least_ms": 1e3 * max(row["bytes"] / BANDWIDTH, row["operations"] / rate)}


def by_name(rows: Sequence[Row]) -> list[Row]:
    merged: dict[str, Row] = {}
    for row in rows:
        into = merged.setdefault(row["name"], {"name": row["name"], **dict.fromkeys(SUMMED, 0)})
        for key in SUMMED:
            into[key] += row[key]
    return list(merged.values())


def roofline_ms(shapes: list[Shape], fraction: float, precision: str) -> float:
    return least_ms(shapes, fraction, "FP32", precision, (RATES["TF32"], RATES["BF16"], BANDWIDTH))


def predict(name: str, rank: str, precision: Precision, least_share: float, **options: Any) -> Iterator[Row]:
    """Of Dion."""
    shapes, fraction = LISTS[name](), ALL_RANKS[rank]
    optimizer = optimizer_of(shapes, fraction, precision, **options)
    least_bytes = bytes_of_passes("FP32", precision) * sum(m * n for m, n in shapes)
    for row in predict_step(optimizer, shapes, least_bytes, least_share):
        if row["kind"] == "predicted_step":
            row["roofline_ms"] = roofline_ms(shapes, fraction, precision)
        yield row


def predict_other(name: str, optimizer: str, least_share: float) -> Iterator[Row]:
    shapes = LISTS[name]()
    yield from predict_step(
        other_optimizer_of(optimizer, shapes), shapes, least_bytes_of(optimizer, shapes), least_share
    )


def predict_step(
    optimizer: torch.optim.Optimizer, shapes: list[Shape], least_bytes: int, least_share: float
) -> Iterator[Row]:
    for _ in range(STEPS_BEFORE):
        optimizer.step()
    *launched, allocated = _C.launches_of(optimizer.step, "meta")
    launches = [with_least_ms(row) for row in launched]
    total: Row = {key: sum(row[key] for row in launches) for key in SUMMED}
    for row in by_name(launches):
        yield {"kind": "predicted", **row}
    for row in launches:
        share = row["least_ms"] / total["least_ms"]
        if "m" in row and share >= least_share:
            shape = {key: row[key] for key in ("name", "m", "n", "k", "count", "given")}
            sums = {key: row[key] for key in SUMMED if key != "blocks"}
            yield {"kind": "predicted_product", **shape, **sums, "share": share}
    parameter_bytes = 4 * sum(m * n for m, n in shapes)
    yield {
        "kind": "predicted_step",
        **total,
        "groups": groups_of(shapes),
        "batches": sum(row["launches"] for row in launches if row["name"].startswith(OF_EACH_BATCH)),
        "fp64_operations": sum(row["operations"] for row in launches if row["name"] == "cuBLAS FP64"),
        "least_bytes": least_bytes,
        "bytes_over_least": total["bytes"] / least_bytes,
        "allocations": allocated["count"],
        "allocated_bytes": allocated["bytes"],
        "peak_bytes": allocated["peak_bytes"],
        "parameter_bytes": parameter_bytes,
        "peak_over_parameters": allocated["peak_bytes"] / parameter_bytes,
    }


def shown(row: Row) -> Row:
    """In the units of a table; what is zero is left out."""
    units = {"MB": row["bytes"] / 1e6, "GFLOP": row["operations"] / 1e9 or None, "blocks": row.get("blocks") or None}
    return {**row, **units, "least ms": row["least_ms"]}


def bytes_named(total: Row) -> str:
    if "roofline_ms" not in total:
        return "bytes that the step cannot do without"
    return f"bytes of passes over whole matrices; the roofline is {total['roofline_ms']:.3g} ms"


def markdown(rows: Sequence[Row]) -> str:
    parts = [
        "# The predicted step",
        "Made by `python benchmarks/gpu/predicted.py --write benchmarks/results/gpu`, which explains every column. "
        "Bytes and operations are those that the algorithm cannot do without; the least time is by a datasheet.",
    ]
    for total in (row for row in rows if row["kind"] == "predicted_step"):
        labels = ("list", "optimizer", "rank", "precision", "nesterov", "residual", "error_feedback", "right_factor")
        of_step = [row for row in rows if all(row.get(label) == total.get(label) for label in labels)]
        kernels = [shown({**row, "kernel": row["name"]}) for row in of_step if row["kind"] == "predicted"]
        kernels.append(shown({**total, "kernel": "sum"}))
        products = [shown({**row, "product": row["name"]}) for row in of_step if row["kind"] == "predicted_product"]
        parts += [
            f"## {total['list']}, {total['optimizer']}"
            + (f", r = {total['rank']}, {total['precision']}" if "rank" in total else "")
            + (", nesterov" * total.get("nesterov", False))
            + (f", residual {total['residual']}" if "residual" in total else "")
            + (", without error feedback" * ("error_feedback" in total))
            + (f", {total['right_factor']} right factor" if "right_factor" in total else ""),
            f"{total['launches'] / total['batches']:.3g} launches for each of {total['batches']} batches of "
            f"{total['groups']} shapes; {total['fp64_operations'] / 1e9:.3g} GFLOP of products in FP64; "
            f"{total['bytes_over_least']:.3g} times the {bytes_named(total)}. "
            f"{total['allocations']} allocations, at most {total['peak_bytes'] / 1e6:.0f} MB at a time: "
            f"{total['peak_over_parameters']:.1%} of the parameters' bytes.",
            table(kernels, ("kernel", "launches", "blocks", "MB", "GFLOP", "least ms")),
            table(products, ("product", "m", "n", "k", "count", "given", "launches", "MB", "GFLOP", "least ms")),
        ]
    return "\n\n".join(parts) + "\n"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", nargs="+", choices=LISTS, default=["120m", "1.3b", "3b"], help="of matrices")
    parser.add_argument("--optimizer", nargs="+", choices=["Dion", *OTHERS], default=["Dion", *OTHERS])
    parser.add_argument("--rank", nargs="+", choices=ALL_RANKS, default=["d/4", "d/16", "d"])
    parser.add_argument("--precision", nargs="+", choices=["highest", "high", "medium"], default=["high", "medium"])
    parser.add_argument("--nesterov", action="store_true")
    parser.add_argument("--residual", nargs="+", choices=["none", "scaled", "sign"], default=["none"])
    parser.add_argument("--no-error-feedback", action="store_true")
    parser.add_argument("--right-factor", choices=["normalized", "orthonormal"], default="normalized")
    parser.add_argument("--cublas-alone", action="store_true", help="symmetric products are computed whole")
    parser.add_argument("--least-share", type=float, default=0.01, help="of products with rows of their own")
    parser.add_argument("--library", type=Path, default=Path(os.environ.get("TORCHDION_EMULATED", LIBRARY)))
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="for the rows and a table of them")
    given = parser.parse_args(arguments)
    if given.cublas_alone:
        os.environ["TORCHDION_SYMMETRIC_PRODUCTS"] = "0"
    load(given.library)
    lines: list[str] = []

    def add(labels: Row, rows: Iterator[Row]) -> None:
        lines.extend(line_of(emit({"kind": row.pop("kind"), **labels, **row})) for row in rows)

    for name, rank, precision, residual in product(given.list, given.rank, given.precision, given.residual):
        if "Dion" not in given.optimizer:
            break
        labels = {"list": name, "optimizer": "Dion", "rank": rank, "state": "FP32", "precision": precision}
        options: dict[str, Any] = {"nesterov": given.nesterov}
        if residual != "none":
            options["residual"] = residual
        if given.no_error_feedback:
            options["error_feedback"] = False
        if given.right_factor != "normalized":
            options["right_factor"] = given.right_factor
        labels |= options
        add(labels, predict(name, rank, precision, given.least_share, **options))
    for name, optimizer in product(given.list, given.optimizer):
        if optimizer != "Dion":
            labels = {"list": name, "optimizer": optimizer, "state": "FP32"}
            labels |= {"cublas_alone": True} if given.cublas_alone else {}
            add(labels, predict_other(name, optimizer, given.least_share))
    if given.write:
        given.write.mkdir(parents=True, exist_ok=True)
        given.write.joinpath("predicted.jsonl").write_text("".join(line + "\n" for line in lines))
        given.write.joinpath("predicted.md").write_text(markdown([json.loads(line) for line in lines]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
