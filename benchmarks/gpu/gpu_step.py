"""The time of one step of Dion on a GPU, beside what the machine needs at least.

    python benchmarks/gpu/gpu_step.py [--list 1.3b 120m 3b] [--rounds 10] [--seconds 260]

JSON lines. Of `kind` "machine": operations per second of 8192³ products and bytes per second of a copy, in this run. Of
`kind` "step", one for each list, rank, state, precision and mode, the largest list last:

    mode         "eager": CUDA events around a step; the GPU is idle before it, so launches count
                 "back to back": one of many steps between two events; the host runs ahead of the GPU
                 "capturable", without a graph yet: the learning rate and the number of steps lie on the GPU
                 "graph": such a step replayed as a CUDA graph; "graphs back to back": one of many replays
    ms           the median, or where steps follow each other the mean
    least_ms     the roofline, see gpu_lists.least_ms()
    first_ms     the first step, which also makes the state
    peak_mb      memory that a step takes beside parameters, gradients and state (`state_mb`)
    problem      why there are no numbers: out of memory, left out, or what an error said
"""

import sys
from collections.abc import Iterator
from typing import Any

from gpu_case import Case, cases_of, dion
from gpu_lists import STATES
from machine import open_machine, parser_of

RANKS_IN_ORDER = ("d/4", "d/16", "d")  # what most targets need first
LARGEST = "3b"  # measured if time is left


def eager_rows(case: Case, rank: str, state: str) -> Iterator[dict[str, Any]]:
    """Dion as it is by default, then with products of BF16 operands."""
    optimizer, _, known = case.started(dion(rank, state, case.machine.device, capturable=False))
    for precision in ("high", "medium"):
        for group in optimizer.param_groups:
            group["precision"] = precision  # which has nothing to do with the state
        optimizer.step()
        row = known if precision == "high" else {"state_mb": known["state_mb"]}
        labels = {"precision": precision, "least_ms": case.least_ms(rank, state, precision)}
        timed = case.timed(optimizer.step)
        yield {**row, **labels, "mode": "eager", **timed, "peak_mb": case.machine.peak_mb(optimizer.step)}
        yield {**labels, "mode": "back to back", **case.timed_back_to_back(optimizer.step)}


def graph_rows(case: Case, rank: str, state: str) -> Iterator[dict[str, Any]]:
    """Dion with what changes from step to step on the GPU: as it is, then replayed as a CUDA graph."""
    optimizer, params, known = case.started(dion(rank, state, case.machine.device, capturable=True))
    least = {"precision": "high", "least_ms": case.least_ms(rank, state, "high")}
    yield {**known, **least, "mode": "capturable", **case.timed(optimizer.step)}
    replay = case.replayed(optimizer, params)
    yield {**least, "mode": "graph", **case.timed(replay)}
    yield {**least, "mode": "graphs back to back", **case.timed_back_to_back(replay)}


def measure(cases: dict[str, Case], name: str, state: str) -> None:
    case = cases[name]
    for rank in RANKS_IN_ORDER:
        labels = {"kind": "step", "list": name, "optimizer": "Dion", "rank": rank, "state": state}
        case.machine.attempt({**labels, "mode": "eager"}, eager_rows(case, rank, state))
        case.machine.attempt({**labels, "mode": "graph"}, graph_rows(case, rank, state))


def main(arguments: list[str]) -> int:
    given = parser_of(__doc__, ["1.3b", "120m", "3b"], 260.0).parse_args(arguments)
    machine = open_machine(given, "gpu_step.py")
    cases = cases_of(machine, given.list, given.rounds, "steps")
    for names in ([name for name in cases if name != LARGEST], [name for name in cases if name == LARGEST]):
        for state in STATES:
            for name in names:
                measure(cases, name, state)
    return machine.finish()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
