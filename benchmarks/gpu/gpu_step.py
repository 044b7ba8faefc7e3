"""The time of one optimizer step on a GPU, beside what the machine needs at least and beside other optimizers.

    python benchmarks/gpu/gpu_step.py [--list 120m 1.3b 3b] [--rounds 10] [--seconds 260]

JSON lines. Of `kind` "machine", before each list: operations per second of 8192³ products and bytes per second of a
copy, in this run. Of `kind` "step", one for each optimizer, list, rank, state, precision and mode:

    ms           the median of CUDA events around a step; the GPU is idle before it, so launches count
    least_ms     of Dion: the roofline, see gpu_lists.least_ms()
    mode         "eager"; "capturable", without a graph yet: the learning rate and the number of steps lie on the GPU;
                 "graph": such a step replayed as a CUDA graph
    first_ms     the first step, which also makes the state
    peak_mb      memory that a step takes beside parameters, gradients and state (`state_mb`)
    problem      why there are no numbers: out of memory, left out, or what an error said

Then, by torch's profiler in eager steps, rows of `kind` "launches": how many kernels, copies and fills, and how many
`groups` of equal shapes; of `kind` "kernel": the time of each and, where its bytes are known, that time `over_copy`.

torch.optim.AdamW(fused=True), torch.optim.Muon and, where it can be imported, microsoft/dion's Dion get the same
matrices; the last comes at the end, as it compiles.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from gpu_lists import LISTS, RANKS, STATES, groups_of, least_ms
from kernel_names import shares
from machine import Machine, Rates, open_machine, parser_of
from matrices import Shape
from measure import emit
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

import torchdion

WARM_UP = 3
Make = Callable[[list[Parameter]], Optimizer]
RIVALS: dict[str, Make] = {
    "AdamW": partial(torch.optim.AdamW, lr=1e-3, fused=True),
    "Muon": partial(torch.optim.Muon, lr=1e-3),
}


class Case(NamedTuple):
    """A list of matrices on a machine that is as fast as this."""

    machine: Machine
    shapes: list[Shape]
    rounds: int
    rates: Rates

    def least_ms(self, rank: str, state: str, precision: str) -> float:
        rates = (self.rates.tf32, self.rates.bf16, self.rates.copy)
        return least_ms(self.shapes, RANKS[rank], state, precision, rates)

    def timed(self, step: Callable[[], object]) -> dict[str, Any]:
        ms, rounds = self.machine.median_ms(step, self.rounds)
        return {"ms": ms, "rounds": rounds}

    def started(self, make: Make) -> tuple[Optimizer, list[Parameter], dict[str, Any]]:
        """An optimizer that has taken its first steps, its parameters, and what can be said of it."""
        params = [Parameter(torch.randn(shape, device=self.machine.device) * 0.02) for shape in self.shapes]
        for param in params:
            param.grad = torch.randn_like(param)
        optimizer = make(params)
        first = self.machine.ms(optimizer.step)
        second = self.machine.ms(optimizer.step)
        for _ in range(WARM_UP if second < 100 else 0):
            optimizer.step()
        return optimizer, params, {"first_ms": first, "state_mb": state_mb(optimizer)}


def state_mb(optimizer: Optimizer) -> float:
    tensors = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    return sum(tensor.nbytes for tensor in tensors) / 1e6


def dion(rank: str, state: str, device: torch.device, capturable: bool) -> Make:
    config = torchdion.DionMixedPrecisionConfig(momentum_dtype=STATES[state], Q_dtype=STATES[state])
    lr = torch.tensor(1e-3, device=device) if capturable else 1e-3
    return partial(
        torchdion.Dion, lr=lr, rank_fraction=RANKS[rank], mixed_precision_config=config, capturable=capturable
    )


def eager_rows(case: Case, rank: str, state: str) -> Iterator[dict[str, Any]]:
    """Dion as it is by default, then with products of BF16 operands."""
    optimizer, _, known = case.started(dion(rank, state, case.machine.device, capturable=False))
    for precision in ("high", "medium"):
        for group in optimizer.param_groups:
            group["precision"] = precision  # which has nothing to do with the state
        optimizer.step()
        row = known if precision == "high" else {"state_mb": known["state_mb"]}
        row = {**row, "precision": precision, **case.timed(optimizer.step)}
        row["least_ms"] = case.least_ms(rank, state, precision)
        yield {**row, "peak_mb": case.machine.peak_mb(optimizer.step)}


def moved_bytes(kernel: str, shapes: list[Shape], state: str) -> int | None:
    """What all launches of a kernel must read and write, where that is plain."""
    if not kernel.startswith("Accumulate"):
        return None
    return sum(m * n for m, n in shapes) * (2 * STATES[state].itemsize + torch.float32.itemsize)  # M twice, G


def graph_rows(case: Case, rank: str, state: str) -> Iterator[dict[str, Any]]:
    """Dion with what changes from step to step on the GPU: as it is, then replayed as a CUDA graph."""
    optimizer, params, known = case.started(dion(rank, state, case.machine.device, capturable=True))
    least = {"precision": "high", "least_ms": case.least_ms(rank, state, "high")}
    yield {**known, **least, "mode": "capturable", **case.timed(optimizer.step)}
    if not case.machine.is_gpu:
        return
    replay = case.machine.captured(optimizer.step, WARM_UP)
    before = params[0].detach().clone()
    replay()
    if torch.equal(before, params[0]):
        raise RuntimeError("the replayed graph left the weights as they were")
    yield {**least, "mode": "graph", **case.timed(replay)}


def rival_rows(case: Case, make: Make) -> Iterator[dict[str, Any]]:
    optimizer, _, known = case.started(make)
    yield {**known, **case.timed(optimizer.step), "peak_mb": case.machine.peak_mb(optimizer.step)}


def profile_rows(case: Case, make: Make, state: str) -> Iterator[dict[str, Any]]:
    """How many launches an eager step has, and what takes its time."""
    optimizer, _, _ = case.started(make)
    kernels = case.machine.kernels(optimizer.step)
    yield {"kind": "launches", "launches": sum(kernel.launches for kernel in kernels), "groups": groups_of(case.shapes)}
    for row in shares(kernels):
        moved = moved_bytes(row["kernel"], case.shapes, state)
        yield {"kind": "kernel", **row, "over_copy": row["ms"] / (1e3 * moved / case.rates.copy) if moved else None}


def package_rows(case: Case, rank: str, state: str) -> Iterator[dict[str, Any]]:
    """microsoft/dion's Dion."""
    package = importlib.import_module("dion")
    config = package.DionMixedPrecisionConfig(momentum_dtype=STATES[state], Q_dtype=STATES[state])
    make = partial(package.Dion, lr=1e-3, rank_fraction=RANKS[rank], mixed_precision_config=config)
    yield from rival_rows(case, make)


def measure_list(case: Case, name: str) -> None:
    step = {"kind": "step", "list": name, "mode": "eager"}
    attempt = case.machine.attempt
    for optimizer, make in RIVALS.items():
        attempt({**step, "optimizer": optimizer}, rival_rows(case, make))
    for rank in RANKS:
        for state in STATES:
            labels = {**step, "optimizer": "Dion", "rank": rank, "state": state}
            attempt(labels, eager_rows(case, rank, state))
            attempt({**labels, "mode": "graph"}, graph_rows(case, rank, state))


def profile(cases: dict[str, Case]) -> None:
    """After everything was timed: launches may take longer once the profiler has run in a process."""
    for state, name in product(STATES, cases):
        case = cases[name]
        for rank in RANKS:
            labels = {"kind": "launches", "list": name, "optimizer": "Dion", "rank": rank, "state": state}
            make = dion(rank, state, case.machine.device, capturable=False)
            case.machine.attempt({**labels, "precision": "high"}, profile_rows(case, make, state))
    for name, case in cases.items():
        for optimizer, make in RIVALS.items():
            labels = {"kind": "launches", "list": name, "optimizer": optimizer}
            case.machine.attempt(labels, profile_rows(case, make, "FP32"))


def measure_package(cases: dict[str, Case]) -> None:
    labels = {"kind": "step", "optimizer": "dion package", "mode": "eager"}
    if not importlib.util.find_spec("dion"):
        emit({**labels, "problem": "microsoft/dion is not installed"})
        return
    for name, rank, state in product(cases, RANKS, STATES):
        row = {**labels, "list": name, "rank": rank, "state": state}
        cases[name].machine.attempt(row, package_rows(cases[name], rank, state))


def main(arguments: list[str]) -> int:
    given = parser_of(__doc__, ["120m", "1.3b", "3b"], 260.0).parse_args(arguments)
    machine = open_machine(given, "gpu_step.py")
    cases: dict[str, Case] = {}
    for name in given.list:
        rates = machine.rates()
        cases[name] = Case(machine, LISTS[name](), given.rounds, rates)
        emit({"kind": "machine", "list": name, "device": machine.name, "torch": torch.__version__, **rates._asdict()})
        machine.free()
        measure_list(cases[name], name)
    if machine.is_gpu:
        profile(cases)
    measure_package(cases)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
