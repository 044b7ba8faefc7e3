"""The time of a step of other optimizers on the same matrices, and of this library's beside them.

    python benchmarks/gpu/gpu_rivals.py [--of torch|cublas|dion|siblings|gram] [--list 1.3b 120m] [--rounds 10]
        [--seconds 75]

JSON lines as gpu_step.py's. Each choice is a program of its own:

    --of torch     torch.optim.AdamW(fused=True) and torch.optim.Muon ("AdamW", "Muon"); this library's Muon, NorMuon,
                   Dion2, Dion3, AdamW and Lion ("torchdion.Muon", ...), of which Muon as a CUDA graph too (`mode`
                   "graph"); the launches of all of them, by torch's profiler, at the end
    --of cublas    this library's Muon in a process in which cuBLAS computes symmetric products, which the library's own
                   kernel does by default: `mode` "cuBLAS alone"
    --of dion      microsoft/dion's Dion ("dion package"), found on PYTHONPATH, which compiles its update: that may take
                   minutes
    --of siblings  that package's other optimizers ("dion package Muon", ...), as many as it has
    --of gram      the Muon of the package gram-newton-schulz ("gram-newton-schulz Muon"), and its orthogonalization
                   alone, of stacks of equal matrices in BF16 (`kind` "operation")

Ratios are of steps of one run. So this library's step is measured again beside each package's, and Dion's, at the ranks
that are compared, beside torch's: rows of `mode` "beside torch", "beside dion" and "beside gram". Of siblings and gram
nothing is measured where the package is missing, which is no failure.
"""

import importlib
import importlib.util
import os
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from gpu_case import WARM_UP, Case, Make, cases_of, dion, other
from gpu_lists import RANKS, STATES, groups_of
from machine import open_machine, parser_of
from measure import emit
from predicted import OTHERS
from rows import beside

import torchdion

COMPARED = ("d/4", "d/16")
TORCH: dict[str, Make] = {
    "AdamW": partial(torch.optim.AdamW, lr=1e-3, fused=True),
    "Muon": partial(torch.optim.Muon, lr=1e-3),
}
PACKAGES = {"dion": "dion", "siblings": "dion", "gram": "gram_newton_schulz"}  # that a choice needs


def contenders(device: torch.device) -> dict[str, Make]:
    return {**TORCH, **{f"torchdion.{name}": other(name, device) for name in OTHERS}}


def timed_rows(case: Case, make: Make) -> Iterator[dict[str, Any]]:
    """`symmetric_products` of this library's: "by half" where its own kernel computes them, else "whole"."""
    optimizer, _, known = case.started(make)
    if type(optimizer).__module__.startswith("torchdion"):
        launches = torchdion._C.launches_of(optimizer.step, case.machine.device.type)
        halved = any(row.get("name") == "symmetric BF16" for row in launches)
        known |= {"symmetric_products": "by half" if halved else "whole"}
    yield {**known, **case.timed(optimizer.step), "peak_mb": case.machine.peak_mb(optimizer.step)}


def compiled_rows(case: Case, make: Make) -> Iterator[dict[str, Any]]:
    """Of a step that compiles itself, for this case alone: torch's compiler has a limit for all in a process."""
    torch.compiler.reset()
    yield from timed_rows(case, make)


def graph_rows(case: Case, name: str) -> Iterator[dict[str, Any]]:
    optimizer, params, known = case.started(other(name, case.machine.device, capturable=True))
    yield {"state_mb": known["state_mb"], **case.timed(case.replayed(optimizer, params))}


def dion_rows(case: Case, rank: str) -> Iterator[dict[str, Any]]:
    [row] = timed_rows(case, dion(rank, "FP32", case.machine.device, capturable=False))
    yield {**row, "precision": "high", "least_ms": case.least_ms(rank, "FP32", "high")}


def launch_rows(case: Case, make: Make) -> Iterator[dict[str, Any]]:
    optimizer, _, _ = case.started(make)
    kernels = case.machine.kernels(optimizer.step)
    yield {"launches": sum(kernel.launches for kernel in kernels), "groups": groups_of(case.shapes)}


def package_rows(case: Case, rank: str) -> Iterator[dict[str, Any]]:
    """microsoft/dion's Dion."""
    package = importlib.import_module("dion")
    config = package.DionMixedPrecisionConfig(momentum_dtype=STATES["FP32"], Q_dtype=STATES["FP32"])
    make = partial(package.Dion, lr=1e-3, rank_fraction=RANKS[rank], mixed_precision_config=config)
    yield from compiled_rows(case, make)


def orthogonalization_rows(case: Case, stack: tuple[int, int, int]) -> Iterator[dict[str, Any]]:
    """gram-newton-schulz's function of a stack [count, m, n], which compiles itself when it is first called."""
    torch.compiler.reset()
    orthogonalize = importlib.import_module("gram_newton_schulz").GramNewtonSchulz()
    matrices = torch.randn(stack, device=case.machine.device).bfloat16()
    for _ in range(WARM_UP):
        orthogonalize(matrices)
    yield case.timed(partial(orthogonalize, matrices))


def measure(
    name: str, case: Case, optimizer: str, rows: Iterator[dict[str, Any]], mode: str = "eager", **labels: str
) -> None:
    """A step, whose rows have these labels."""
    case.machine.attempt({"kind": "step", "list": name, "optimizer": optimizer, **labels, "mode": mode}, rows)


def measure_beside(name: str, case: Case, package: str, optimizer: str, make: Make) -> None:
    """A package's optimizer, and then this library's of that name."""
    measure(name, case, f"{package} {optimizer}", compiled_rows(case, make))
    own = other(optimizer, case.machine.device)
    measure(name, case, f"torchdion.{optimizer}", timed_rows(case, own), beside(package))


def measure_torch(cases: dict[str, Case]) -> None:
    for name, case in cases.items():
        for optimizer, make in contenders(case.machine.device).items():
            measure(name, case, optimizer, timed_rows(case, make))
        measure(name, case, "torchdion.Muon", graph_rows(case, "Muon"), "graph")
        for rank in COMPARED:
            measure(name, case, "Dion", dion_rows(case, rank), beside("AdamW"), rank=rank, state="FP32")
    for name, case in cases.items():  # after everything was timed: launches may take longer once the profiler has run
        for optimizer, make in contenders(case.machine.device).items():
            labels = {"kind": "launches", "list": name, "optimizer": optimizer}
            case.machine.attempt(labels, launch_rows(case, make))


def measure_cublas(cases: dict[str, Case]) -> None:
    for name, case in cases.items():
        measure(name, case, "torchdion.Muon", timed_rows(case, other("Muon", case.machine.device)), "cuBLAS alone")


def measure_dion(cases: dict[str, Case]) -> None:
    for name, case in cases.items():
        for rank in COMPARED:
            measure(name, case, "dion package", package_rows(case, rank), rank=rank, state="FP32")
            measure(name, case, "Dion", dion_rows(case, rank), beside("dion package"), rank=rank, state="FP32")


def measure_siblings(cases: dict[str, Case]) -> None:
    package = importlib.import_module("dion")
    for name, case in cases.items():
        for optimizer in OTHERS:
            if hasattr(package, optimizer):
                make = partial(getattr(package, optimizer), lr=1e-3)
                measure_beside(name, case, "dion package", optimizer, make)


def measure_gram(cases: dict[str, Case]) -> None:
    package = importlib.import_module("gram_newton_schulz")
    for name, case in cases.items():
        measure_beside(name, case, "gram-newton-schulz", "Muon", partial(package.Muon, lr=1e-3))
    for name, case in cases.items():
        for (m, n), count in Counter(case.shapes).items():
            labels = {"kind": "operation", "list": name, "operation": "GramNewtonSchulz"}
            rows = orthogonalization_rows(case, (count, m, n))
            case.machine.attempt({**labels, "count": count, "m": m, "n": n}, rows)


MEASURES = {
    "torch": measure_torch,
    "cublas": measure_cublas,
    "dion": measure_dion,
    "siblings": measure_siblings,
    "gram": measure_gram,
}


def main(arguments: list[str]) -> int:
    parser = parser_of(__doc__, ["1.3b", "120m"], 75.0)
    parser.add_argument("--of", choices=MEASURES, default="torch", help="whose optimizers")
    given = parser.parse_args(arguments)
    package = PACKAGES.get(given.of)
    if package and not importlib.util.find_spec(package):
        if given.of != "dion":
            print(f"gpu_rivals.py: nothing is measured of {given.of}: there is no package {package}")
            return 0
        problem = "no package dion is on PYTHONPATH: run.sh peers takes a checkout with --dion FOLDER"
        emit({"kind": "step", "optimizer": "dion package", "mode": "eager", "problem": problem})
        return 1
    if given.of == "cublas":
        os.environ["TORCHDION_SYMMETRIC_PRODUCTS"] = "0"  # read by the first symmetric product of a process
    machine = open_machine(given, "gpu_rivals.py")
    MEASURES[given.of](cases_of(machine, given.list, given.rounds, f"rivals of {given.of}"))
    return machine.finish()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
