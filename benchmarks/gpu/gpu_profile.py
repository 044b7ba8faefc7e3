"""What an eager step of Dion and of this library's other optimizers launches, and what takes its time.

    python benchmarks/gpu/gpu_profile.py [--list 1.3b 120m 3b] [--seconds 75]

JSON lines, by torch's profiler. Of `kind` "launches": how many kernels, copies and fills a step has, and how many
`groups` of equal shapes. Of `kind` "kernel": the launches and the time of each by its short name (kernel_names.py), its
`share`, and, where its bytes are known, that time `over_copy`. Their `optimizer` is "Dion", at each rank and state, or
"torchdion.Muon" and so on, with FP32 states and not of the largest list. Of `kind` "predicted": what the step's own
recorder says of each, by the names of predicted.py, which the report sets beside its time (gpu_predicted.py). A program
of its own: launches may take longer once the profiler has run in a process.
"""

import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from gpu_case import Case, Make, cases_of, dion, other
from gpu_lists import STATES, groups_of
from gpu_predicted import recorded_rows
from gpu_step import LARGEST, RANKS_IN_ORDER
from kernel_names import shares
from machine import open_machine, parser_of
from matrices import Shape
from predicted import OTHERS

import torchdion


def moved_bytes(kernel: str, shapes: list[Shape], state: str) -> int | None:
    """What all launches of a kernel must read and write, where that is plain: Dion's first pass over whole matrices."""
    if not kernel.startswith("Accumulate<"):
        return None
    return sum(m * n for m, n in shapes) * (2 * STATES[state].itemsize + 4)  # M twice, G in FP32


def profile_rows(case: Case, make: Make, predicted: str, state: str) -> Iterator[dict[str, Any]]:
    """Of an optimizer that predicted.py calls `predicted`."""
    optimizer, _, _ = case.started(make)
    launches_of = partial(torchdion._C.launches_of, device_type=case.machine.device.type)
    # Before the profiler, beside which nothing is recorded.
    yield from ({**row, "optimizer": predicted} for row in recorded_rows(launches_of, optimizer.step))
    kernels = case.machine.kernels(optimizer.step)
    yield {"kind": "launches", "launches": sum(kernel.launches for kernel in kernels), "groups": groups_of(case.shapes)}
    for row in shares(kernels):
        moved = moved_bytes(row["kernel"], case.shapes, state)
        yield {"kind": "kernel", **row, "over_copy": row["ms"] / (1e3 * moved / case.rates.copy) if moved else None}


def profile_dion(cases: dict[str, Case], state: str) -> None:
    for name, case in cases.items():
        for rank in RANKS_IN_ORDER:
            labels = {"kind": "launches", "list": name, "optimizer": "Dion", "rank": rank, "state": state}
            make = dion(rank, state, case.machine.device, capturable=False)
            case.machine.attempt({**labels, "precision": "high"}, profile_rows(case, make, "Dion", state))


def profile_others(cases: dict[str, Case]) -> None:
    for name, case in cases.items():
        for optimizer in OTHERS if name != LARGEST else ():
            labels = {"kind": "launches", "list": name, "optimizer": f"torchdion.{optimizer}", "state": "FP32"}
            make = other(optimizer, case.machine.device)
            case.machine.attempt(labels, profile_rows(case, make, optimizer, "FP32"))


def profile(cases: dict[str, Case]) -> None:
    first, *later = STATES
    profile_dion(cases, first)
    profile_others(cases)
    for state in later:
        profile_dion(cases, state)


def main(arguments: list[str]) -> int:
    given = parser_of(__doc__, ["1.3b", "120m", "3b"], 75.0).parse_args(arguments)
    machine = open_machine(given, "gpu_profile.py")
    profile(cases_of(machine, given.list, given.rounds, "profile"))
    return machine.finish()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
