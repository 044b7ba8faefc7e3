"""The time of a step of other optimizers on the same matrices, and of Dion's beside them.

    python benchmarks/gpu/gpu_rivals.py [--of torch|dion] [--list 1.3b 120m] [--rounds 10] [--seconds 50]

JSON lines as gpu_step.py's. `--of torch`: torch.optim.AdamW(fused=True), torch.optim.Muon and this library's, with
their launches by torch's profiler at the end. `--of dion`: microsoft/dion's Dion, found on PYTHONPATH, which compiles
its update: a program of its own, as that may take minutes. Dion's own eager step is measured in the same run at the
ranks that are compared, for the ratios: rows of `mode` "beside torch" and "beside dion".
"""

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from gpu_case import Case, Make, cases_of, dion
from gpu_lists import RANKS, STATES, groups_of
from machine import open_machine, parser_of
from measure import emit
from rows import beside

import torchdion

COMPARED = ("d/4", "d/16")
RIVALS: dict[str, Make] = {
    "AdamW": partial(torch.optim.AdamW, lr=1e-3, fused=True),
    "Muon": partial(torch.optim.Muon, lr=1e-3),
    "torchdion.Muon": partial(torchdion.Muon, lr=1e-3),
}


def rival_rows(case: Case, make: Make) -> Iterator[dict[str, Any]]:
    optimizer, _, known = case.started(make)
    yield {**known, **case.timed(optimizer.step), "peak_mb": case.machine.peak_mb(optimizer.step)}


def own_rows(case: Case, rank: str) -> Iterator[dict[str, Any]]:
    [row] = rival_rows(case, dion(rank, "FP32", case.machine.device, capturable=False))
    yield {**row, "precision": "high", "least_ms": case.least_ms(rank, "FP32", "high")}


def launch_rows(case: Case, make: Make) -> Iterator[dict[str, Any]]:
    optimizer, _, _ = case.started(make)
    kernels = case.machine.kernels(optimizer.step)
    yield {"launches": sum(kernel.launches for kernel in kernels), "groups": groups_of(case.shapes)}


def package_rows(case: Case, rank: str) -> Iterator[dict[str, Any]]:
    """microsoft/dion's Dion, compiled for this case alone: torch's compiler has a limit for all in a process."""
    torch.compiler.reset()
    package = importlib.import_module("dion")
    config = package.DionMixedPrecisionConfig(momentum_dtype=STATES["FP32"], Q_dtype=STATES["FP32"])
    make = partial(package.Dion, lr=1e-3, rank_fraction=RANKS[rank], mixed_precision_config=config)
    yield from rival_rows(case, make)


def measure_own(name: str, case: Case, rank: str, mode: str) -> None:
    labels = {"kind": "step", "list": name, "optimizer": "Dion", "rank": rank, "state": "FP32", "mode": mode}
    case.machine.attempt(labels, own_rows(case, rank))


def measure_torch(cases: dict[str, Case]) -> None:
    for name, case in cases.items():
        for optimizer, make in RIVALS.items():
            labels = {"kind": "step", "list": name, "optimizer": optimizer, "mode": "eager"}
            case.machine.attempt(labels, rival_rows(case, make))
        for rank in COMPARED:
            measure_own(name, case, rank, beside("AdamW"))
    for name, case in cases.items():  # after everything was timed: launches may take longer once the profiler has run
        for optimizer, make in RIVALS.items():
            labels = {"kind": "launches", "list": name, "optimizer": optimizer}
            case.machine.attempt(labels, launch_rows(case, make))


def measure_package(cases: dict[str, Case]) -> None:
    for name, case in cases.items():
        for rank in COMPARED:
            labels = {"kind": "step", "list": name, "optimizer": "dion package", "mode": "eager"}
            case.machine.attempt({**labels, "rank": rank, "state": "FP32"}, package_rows(case, rank))
            measure_own(name, case, rank, beside("dion package"))


def main(arguments: list[str]) -> int:
    parser = parser_of(__doc__, ["1.3b", "120m"], 50.0)
    parser.add_argument("--of", choices=("torch", "dion"), default="torch", help="whose optimizers")
    given = parser.parse_args(arguments)
    if given.of == "dion" and not importlib.util.find_spec("dion"):
        problem = "no package dion is on PYTHONPATH: run.sh peers takes a checkout with --dion FOLDER"
        emit({"kind": "step", "optimizer": "dion package", "mode": "eager", "problem": problem})
        return 1
    machine = open_machine(given, "gpu_rivals.py")
    cases = cases_of(machine, given.list, given.rounds, f"rivals of {given.of}")
    (measure_torch if given.of == "torch" else measure_package)(cases)
    return machine.finish()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
