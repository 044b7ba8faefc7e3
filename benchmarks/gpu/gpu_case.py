"""An optimizer on a list of matrices, ready to be timed."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from gpu_lists import LISTS, RANKS, STATES, least_ms
from machine import Machine, Rates, machine_row
from matrices import Shape
from measure import emit
from predicted import OTHERS
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

import torchdion

WARM_UP = 3
Make = Callable[[list[Parameter]], Optimizer]


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

    def timed_back_to_back(self, step: Callable[[], object]) -> dict[str, Any]:
        ms, rounds = self.machine.back_to_back_ms(step, self.rounds)
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

    def replayed(self, optimizer: Optimizer, params: list[Parameter]) -> Callable[[], object]:
        """The replay of a CUDA graph of a step, which has been seen to move the weights."""
        replay = self.machine.captured(optimizer.step, WARM_UP)
        before = params[0].detach().clone()
        replay()
        if torch.equal(before, params[0]):
            raise RuntimeError("the replayed graph left the weights as they were")
        return replay


def state_mb(optimizer: Optimizer) -> float:
    tensors = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    return sum(tensor.nbytes for tensor in tensors) / 1e6


def cases_of(machine: Machine, lists: list[str], rounds: int, program: str) -> dict[str, Case]:
    """Of every list, at the rates that the machine has now, which become a row."""
    rates = machine.rates()
    emit(machine_row(machine, rates, program=program))
    machine.free()
    return {name: Case(machine, LISTS[name](), rounds, rates) for name in lists}


def lr_of(device: torch.device, capturable: bool) -> float | Tensor:
    """On the device where a graph is to read it there."""
    return torch.tensor(1e-3, device=device) if capturable else 1e-3


def dion(rank: str, state: str, device: torch.device, capturable: bool) -> Make:
    config = torchdion.DionMixedPrecisionConfig(momentum_dtype=STATES[state], Q_dtype=STATES[state])
    return partial(
        torchdion.Dion,
        lr=lr_of(device, capturable),
        rank_fraction=RANKS[rank],
        mixed_precision_config=config,
        capturable=capturable,
    )


def other(name: str, device: torch.device, capturable: bool = False) -> Make:
    """One of this library's optimizers that have no rank, with FP32 states and all other options at their defaults."""
    return partial(OTHERS[name], lr=lr_of(device, capturable), capturable=capturable)
